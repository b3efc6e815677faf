#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// How a model answers: fields of a chat request by name, as JSON text. An absent field means the
// model's default. One thread.
class ChatSettings {
 public:
  // Sets a field from a word of a user: "0.7", "on", or a text for `stop`; "default" removes it.
  // Throws kInvalidArgument with the names, or the range.
  void Set(const std::string& name, const std::string& value);
  // Sets a field from JSON text of a file, by the same rules.
  void SetJson(const std::string& name, const std::string& json);

  const std::map<std::string, std::string>& values() const { return values_; }
  bool Has(const std::string& name) const { return values_.contains(name); }

  static std::vector<std::string> Names();
  // One line per name: what it does.
  static std::string Help();

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace tandem::server
