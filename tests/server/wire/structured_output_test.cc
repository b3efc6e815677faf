#include "server/wire/structured_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::GrammarSource;

std::optional<StructuredOutput> ReadFrom(const std::string& fields) {
  const Json body = Json::parse("{" + fields + "}");
  FieldReader reader(body);
  return ReadStructuredOutput(reader);
}

Error FaultOfFields(const std::string& fields) {
  const auto error = ErrorOf([&] { ReadFrom(fields); });
  if (!error) {
    ADD_FAILURE() << fields << " was accepted";
    return Error(ErrorCode::kInternal, "");
  }
  return *error;
}

TEST(StructuredOutput, NothingConstrainsAPlainRequest) {
  for (const char* fields :
       {"", R"("response_format": {"type": "text"})", R"("guided_json": null)",
        R"("guided_regex": "")", R"("guided_choice": [])", R"("structured_outputs": {})",
        R"("structured_outputs": {"json_object": false})"}) {
    SCOPED_TRACE(fields);
    EXPECT_FALSE(ReadFrom(fields).has_value());
  }
}

TEST(StructuredOutput, EveryFieldGivesItsKindOfGrammar) {
  if (engine::LlguidanceVersion().empty()) GTEST_SKIP() << "built without Rust";
  using Kind = GrammarSource::Kind;
  const std::pair<const char*, Kind> cases[] = {
      {R"("response_format": {"type": "json_object"})", Kind::kJsonSchema},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}})",
       Kind::kJsonSchema},
      {R"("guided_json": {"type": "object"})", Kind::kJsonSchema},
      {R"("guided_json": "{\"type\": \"object\"}")", Kind::kJsonSchema},
      {R"("json_schema": {})", Kind::kJsonSchema},
      {R"("guided_regex": "a+")", Kind::kRegex},
      {R"("guided_choice": ["a", "b"])", Kind::kLark},
      {R"("guided_grammar": "start: \"a\"")", Kind::kLark},
      {R"("structured_outputs": {"regex": "a"})", Kind::kRegex},
      {R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})",
       Kind::kJsonSchema},
      {R"("structured_outputs": {"json": {}, "whitespace_pattern": " ?"})", Kind::kJsonSchema},
      {R"("response_format": {"type": "text"}, "guided_regex": "a")", Kind::kRegex},
  };
  for (const auto& [fields, kind] : cases) {
    SCOPED_TRACE(fields);
    const auto structured = ReadFrom(fields);
    ASSERT_TRUE(structured.has_value());
    EXPECT_EQ(structured->source.kind, kind);
  }
}

struct BadFields {
  const char* fields;
  const char* param;
  const char* reason;
};

TEST(StructuredOutput, NamesTheFieldAtFault) {
  const BadFields cases[] = {
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema",
       "missing_required_parameter"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
       "response_format.json_schema.name", "missing_required_parameter"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}})",
       "response_format.json_schema.name", "invalid_value"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a"}})",
       "response_format.json_schema.schema", "missing_required_parameter"},
      {R"("response_format": {"type": "json_schema",
           "json_schema": {"name": "a", "schema": {"not": {}}}})",
       "response_format.json_schema.schema.not", "unsupported_schema"},
      {R"("guided_json": 3)", "guided_json", "invalid_schema"},
      {R"("guided_json": "{")", "guided_json", "invalid_schema"},
      {R"("guided_regex": 3)", "guided_regex", "invalid_type"},
      {R"("guided_regex": "a\nb")", "guided_regex", "invalid_value"},
      {R"("guided_choice": "a")", "guided_choice", "invalid_type"},
      {R"("guided_choice": ["a", 1])", "guided_choice[1]", "invalid_type"},
      {R"("guided_choice": [""])", "guided_choice[0]", "invalid_value"},
      {R"("structured_outputs": {"structural_tag": "x"})", "structured_outputs.structural_tag",
       "unsupported_parameter"},
      {R"("structured_outputs": {"regex": "a", "json": {}})", "structured_outputs.regex",
       "invalid_value"},
      {R"("structured_outputs": {"json": {}, "whitespace_pattern": "a"})",
       "structured_outputs.whitespace_pattern", "invalid_value"},
      {R"("guided_regex": "a", "guided_json": {})", "guided_regex", "invalid_value"},
      {R"("response_format": {"type": "json_object"}, "json_schema": {})", "json_schema",
       "invalid_value"},
  };
  for (const auto& [fields, param, reason] : cases) {
    SCOPED_TRACE(fields);
    const Error error = FaultOfFields(fields);
    EXPECT_EQ(error.param(), param) << error.what();
    EXPECT_EQ(error.reason(), reason) << error.what();
  }
}

TEST(StructuredOutput, ABuildWithoutRustRefusesEveryConstraint) {
  if (!engine::LlguidanceVersion().empty()) GTEST_SKIP() << "built with Rust";

  const Error error = FaultOfFields(R"("guided_regex": "a")");

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.param(), "guided_regex");
}

}  // namespace
}  // namespace tandem::server
