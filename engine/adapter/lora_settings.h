#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/adapter/name_ends.h"

namespace tandem::engine {

// The numbers of rank_pattern or alpha_pattern, by module path.
class LoraPattern {
 public:
  enum class Numbers { kIntegers, kReals };
  // Throws kDataLoss, or kUnsupported for a regular expression, naming `source` and the entry.
  LoraPattern(const nlohmann::ordered_json& config, const char* field, Numbers numbers, double max,
              const std::string& source);

  double Of(const std::string& path, double otherwise) const;

 private:
  struct Entry {
    size_t place = 0;  // the first entry that matches counts
    double value = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  Entries whole_;  // match whole paths
  Entries ends_;   // match whole paths and ends of paths, after a dot
};

// The fields of adapter_config.json that the arithmetic of an adapter needs.
struct LoraSettings {
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  bool is_dora = false;
  bool ties_weights = false;  // ensure_weight_tying
  LoraPattern ranks;
  LoraPattern alphas;
  // Unset: an expression, or "all-linear".
  std::optional<std::set<std::string, std::less<>>> targets;
  std::vector<std::string> saved_modules;  // modules_to_save
  NameEnds saved_ends;                     // the same
};

// Throws kDataLoss, or kUnsupported for fields that would change the arithmetic, naming `source`
// and the field.
LoraSettings ReadLoraSettings(const nlohmann::ordered_json& config, const std::string& source);

// True if a field's value is null, false or empty, so the arithmetic does not change.
bool IsUnset(const nlohmann::ordered_json& value);

[[noreturn]] void RefuseAdapter(const std::string& source, const std::string& what);
[[noreturn]] void FailBrokenAdapter(const std::string& source, const std::string& what);

}  // namespace tandem::engine
