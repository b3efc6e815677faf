#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// The tools of a request: their names, their kinds, and which parameters are not text. Immutable;
// shared by the choices of an answer.
class DeclaredTools {
 public:
  // `tools` is a checked list of the API: {"type": "function", "function": {"name": …}}, or
  // {"type": "custom", "custom": {"name": …}}. `is_constrained`: the answer obeys CallGrammar.
  explicit DeclaredTools(const nlohmann::ordered_json& tools, bool is_constrained = false);

  bool Has(std::string_view name) const { return tools_.find(name) != tools_.end(); }
  bool IsCustom(std::string_view name) const;
  // Whether the value of a parameter is JSON rather than text. Formats without quotes do not tell
  // the text 7 from the number 7; only the schema does. Undeclared parameters are text.
  bool IsJson(std::string_view tool, std::string_view parameter) const;
  // The names of the custom tools whose input stands unquoted at the end of an answer
  // (RawInputMark), because it obeys a grammar.
  const std::vector<std::string>& raw_inputs() const { return raw_inputs_; }

 private:
  struct Tool {
    bool is_custom = false;
    std::set<std::string, std::less<>> json_parameters;
  };
  std::map<std::string, Tool, std::less<>> tools_;
  std::vector<std::string> raw_inputs_;
};

// Whether the custom tool {"name": …, "format": …} has an input that obeys a Lark grammar.
bool HasRawInput(const nlohmann::ordered_json& custom);
// The mark before such an input, which ends with the answer.
std::string RawInputMark(std::string_view name);

}  // namespace tandem::engine
