#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

namespace tandem::engine {

// The tools of a request: their names, and which parameters are not text. Immutable; shared by the
// choices of an answer.
class DeclaredTools {
 public:
  // `tools` is a checked list of the API: {"type": "function", "function": {"name": …}}.
  explicit DeclaredTools(const nlohmann::ordered_json& tools);

  bool Has(std::string_view name) const { return tools_.find(name) != tools_.end(); }
  // Whether the value of a parameter is JSON rather than text. Formats without quotes do not tell
  // the text 7 from the number 7; only the schema does. Undeclared parameters are text.
  bool IsJson(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> tools_;
};

}  // namespace tandem::engine
