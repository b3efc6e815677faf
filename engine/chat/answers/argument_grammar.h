#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/chat/answers/call_grammar.h"
#include "engine/chat/answers/lark_text.h"

namespace tandem::engine {

// Writes the grammar of single calls: from the name to the last byte of the arguments, marks of
// the block excluded.
class ArgumentGrammar {
 public:
  // `excluded`: marks that unquoted texts must not hold.
  ArgumentGrammar(const CallGrammarOptions& options, std::vector<std::string> excluded,
                  LarkText& lark)
      : options_(options), excluded_(std::move(excluded)), lark_(lark) {}

  // Appends the call. The caller may have begun the sequence with the mark before it.
  void Append(const CallableTool& tool, LarkSequence& out);

 private:
  // One parameter of a call, with the schema that holds all definitions.
  struct Parameter {
    std::string name;
    std::string path;
    bool is_required = false;
    const nlohmann::ordered_json* schema = nullptr;
  };

  std::string JsonRule(const nlohmann::ordered_json& schema, const std::string& path);
  std::string ObjectRule(const CallableTool& tool);
  std::vector<Parameter> Parameters(const CallableTool& tool) const;
  // The value of a parameter where the format has parameters of its own.
  std::string ParameterRule(const CallableTool& tool, const Parameter& parameter);
  void AppendXml(const CallableTool& tool, LarkSequence& out);
  std::string XmlParameter(const CallableTool& tool, const Parameter& parameter);
  std::string XmlText();
  // Members with commas between them: f(a=1, b=2), f{a:1,b:2}.
  std::string Members(const CallableTool& tool);
  std::string Member(const CallableTool& tool, const Parameter& parameter, bool has_comma);
  std::string QuotedText(const std::vector<std::string>& choices);

  const CallGrammarOptions& options_;
  const std::vector<std::string> excluded_;
  LarkText& lark_;
};

}  // namespace tandem::engine
