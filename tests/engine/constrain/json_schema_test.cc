#include "engine/constrain/json_schema.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/constrain/constrain_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

std::optional<Error> Refusal(const std::string& schema) {
  return ErrorOf([&] { SchemaGrammar(Json::parse(schema), "s"); });
}

TEST(JsonSchema, KeywordsThatTheGrammarCannotHoldAreNamedWithTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "s.not"},
      {R"({"properties": {"a": {"if": {}}}})", "s.properties.a.if"},
      {R"({"anyOf": [{}, {"uniqueItems": true}]})", "s.anyOf[1].uniqueItems"},
      {R"({"items": {"contains": {}}})", "s.items.contains"},
      {R"({"$defs": {"x": {"propertyNames": {}}}})", "s.$defs.x.propertyNames"},
      {R"({"dependentRequired": {}})", "s.dependentRequired"},
      {R"({"unevaluatedProperties": false})", "s.unevaluatedProperties"},
      {R"({"$ref": "https://example.com/schema"})", "s.$ref"},
      {R"({"$ref": "#anchor"})", "s.$ref"},
      {R"({"$dynamicRef": "#a"})", "s.$dynamicRef"},
      {R"({"items": {"$id": "x"}})", "s.items.$id"},
      {R"({"maxLength": 10001})", "s.maxLength"},
      {R"({"const": 9007199254740993})", "s.const"},
      {R"({"enum": [1, [12345678901234567890]]})", "s.enum.1.0"},
      {R"({"maximum": 9007199254740994})", "s.maximum"},
  };
  for (const auto& [schema, path] : cases) {
    SCOPED_TRACE(schema);
    const auto refusal = Refusal(schema);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->param(), path);
    EXPECT_EQ(refusal->reason(), "unsupported_schema");
  }
}

TEST(JsonSchema, MalformedSchemasAreNamedWithTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {"3", "s"},
      {"false", "s"},
      {R"({"properties": []})", "s.properties"},
      {R"({"properties": {"a": 1}})", "s.properties.a"},
      {R"({"anyOf": []})", "s.anyOf"},
      {R"({"enum": []})", "s.enum"},
      {R"({"minItems": -1})", "s.minItems"},
      {R"({"minItems": 1.5})", "s.minItems"},
      {R"({"$ref": 1})", "s.$ref"},
  };
  for (const auto& [schema, path] : cases) {
    SCOPED_TRACE(schema);
    const auto refusal = Refusal(schema);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->param(), path);
    EXPECT_EQ(refusal->reason(), "invalid_schema");
  }
}

TEST(JsonSchema, AnnotationsUnknownFormatsAndNeutralValuesAreAccepted) {
  for (const char* schema :
       {R"({"type": "string", "format": "color"})", R"({"title": "t", "x-more": {"not": {}}})",
        R"({"uniqueItems": false, "type": "array"})", R"({"type": "string", "nullable": true})",
        R"({"minItems": 2.0, "type": "array"})", "true", R"({"const": {"not": 1}})"}) {
    SCOPED_TRACE(schema);
    EXPECT_FALSE(Refusal(schema).has_value());
  }
}

TEST(JsonSchema, BoundsOfNumbersHoldForEverySpelling) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  const std::vector<double> bounds = {-10, -1, -0.5, -0.25, 0, 0.1, 0.5, 1, 1.5, 12.75};
  const std::vector<std::string> texts = {
      "-10", "-9.99", "-1",  "-1.0", "-1.01",  "-0.99", "-0.5",  "-0.50", "-0.3", "-0.25", "-0.1",
      "-0",  "-0.0",  "0",   "0.0",  "0.0001", "0.05",  "0.1",   "0.10",  "0.3",  "0.5",   "0.50",
      "0.9", "1",     "1.0", "1.2",  "1.5",    "1.51",  "12.75", "12.8",  "13",   "100",   "-100"};
  for (const double low : bounds) {
    for (const double high : bounds) {
      for (int kind = 0; low < high && kind < 4; ++kind) {
        const Json schema = {{"type", "number"},
                             {kind & 1 ? "exclusiveMinimum" : "minimum", low},
                             {kind & 2 ? "exclusiveMaximum" : "maximum", high}};
        SCOPED_TRACE(schema.dump());
        const auto grammar = vocabulary.compiler->Compile(SchemaGrammar(schema, "s"));
        for (const std::string& text : texts) {
          GrammarMatcher matcher = grammar->NewMatcher();
          bool is_held = false;
          ErrorOf([&] {
            for (const char c : text) matcher.Commit(c);
            is_held = matcher.IsComplete();
          });
          const double value = std::stod(text);
          EXPECT_FALSE(is_held && (value < low || value > high || (kind & 1 && value == low) ||
                                   (kind & 2 && value == high)))
              << text;
        }
      }
    }
  }
}

TEST(JsonSchema, SchemasOfTooManyPartsAreRefused) {
  Json wide = Json::object();
  for (int i = 0; i < 1501; ++i) wide["anyOf"].push_back({{"const", i}});
  Json many = {{"type", "object"}};
  for (int i = 0; i < 500; ++i) {
    const Json part = {{"allOf", Json::array_t(9, Json::object())}};
    many["properties"]["p" + std::to_string(i)] = part;
  }
  for (const Json& schema : {wide, many}) {
    const auto refused = ErrorOf([&] { SchemaGrammar(schema, "s"); });
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->reason(), "unsupported_schema");
  }
}

TEST(JsonSchema, AClientCannotSetTheOptionsOfTheGrammar) {
  const GrammarSource source =
      SchemaGrammar(Json::parse(R"({"x-guidance": {"lenient": true}})"), "s");

  EXPECT_EQ(source.text.find("lenient"), std::string::npos);
}

TEST(JsonSchema, SpacingIsWhiteSpaceOnly) {
  EXPECT_EQ(CheckedSpacing("[ \\n]?", "p"), "[\\x20\\n]?");
  EXPECT_EQ(CheckedSpacing("\\s{0,2}", "p"), "[\\x20\\t\\n\\r]{0,2}");
  for (const char* bad : {"", "a", ".", "[^a]", "(", "\\d", "[ ", " {", "\\", " |x", "$"}) {
    SCOPED_TRACE(bad);
    EXPECT_TRUE(ErrorOf([&] { CheckedSpacing(bad, "p"); }).has_value());
  }
}

struct Checked {
  const char* schema;
  std::function<bool(const Json&)> is_valid;
};

bool AllOf(const Json& list, const std::function<bool(const Json&)>& is_valid) {
  return list.is_array() && std::all_of(list.begin(), list.end(), is_valid);
}

std::vector<Checked> CheckedSchemas() {
  return {
      {R"({"type": "object"})", [](const Json& v) { return v.is_object(); }},
      {R"({"type": "boolean"})", [](const Json& v) { return v.is_boolean(); }},
      {R"({"enum": ["a", 1, null, {"b": [true]}]})",
       [](const Json& v) {
         return v == "a" || v == 1 || v.is_null() || v == Json::parse(R"({"b": [true]})");
       }},
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 12, "multipleOf": 3})",
       [](const Json& v) {
         return v.is_number_integer() && v >= -3 && v < 12 && v.get<int64_t>() % 3 == 0;
       }},
      {R"({"type": "string", "minLength": 2, "maxLength": 4})",
       [](const Json& v) { return v.is_string(); }},
      {R"({"type": "string", "pattern": "^[ab]{3}$"})",
       [](const Json& v) { return v.get<std::string>().size() == 3; }},
      {R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
       [](const Json& v) {
         return AllOf(v, [](const Json& e) { return e.is_boolean(); }) && !v.empty() &&
                v.size() <= 3;
       }},
      {R"({"type": "array", "prefixItems": [{"const": 1}], "items": false, "minItems": 1})",
       [](const Json& v) { return v == Json::array({1}); }},
      {R"({"type": "object", "properties": {"b": {"type": "integer", "minimum": 0, "maximum": 99},
           "a": {"type": ["null", "boolean"]}}, "required": ["b"], "additionalProperties": false})",
       [](const Json& v) {
         return v.at("b").is_number_integer() && v.size() <= 2 && v.begin().key() == "b";
       }},
      {R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["v"],
           "additionalProperties": false, "properties": {"v": {"const": 0},
           "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}}}})",
       [](const Json& v) { return v.at("v") == 0; }},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
           {"properties": {"b": {"const": 2}}, "required": ["b"]}],
           "maxProperties": 2})",
       [](const Json& v) { return v.at("a") == 1 && v.at("b") == 2; }},
      {R"({"type": "string", "nullable": true, "maxLength": 3})",
       [](const Json& v) { return v.is_null() || v.is_string(); }},
      {R"({"type": "string", "format": "date"})",
       [](const Json& v) { return v.get<std::string>().size() == 10; }},
  };
}

TEST(JsonSchema, RandomCompleteTextsAreValidAndHaveNoLineBreak) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  std::mt19937 random(20261123);
  for (const Checked& checked : CheckedSchemas()) {
    SCOPED_TRACE(checked.schema);
    const auto grammar =
        vocabulary.compiler->Compile(SchemaGrammar(Json::parse(checked.schema), "s"));
    int n_complete = 0;
    for (int i = 0; i < 20; ++i) {
      const std::optional<std::string> text = RandomText(vocabulary, *grammar, random);
      if (!text) continue;
      ++n_complete;
      SCOPED_TRACE(*text);
      ASSERT_EQ(text->find('\n'), std::string::npos);
      const Json value = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded());
      ASSERT_TRUE(checked.is_valid(value));
    }
    EXPECT_GT(n_complete, 0);
  }
}

TEST(JsonSchema, TheFormOfSpacingIsAsAsked) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"const": 1},
      "b": {"const": 2}}, "required": ["a", "b"], "additionalProperties": false})");
  const auto texts = [&](const JsonSpacing& spacing) {
    std::set<std::string> out;
    const auto grammar = vocabulary.compiler->Compile(SchemaGrammar(schema, "s", spacing));
    std::mt19937 random(3);
    for (int i = 0; i < 60; ++i) {
      if (const auto text = RandomText(vocabulary, *grammar, random)) out.insert(*text);
    }
    return out;
  };

  EXPECT_EQ(texts({.is_compact = true}), std::set<std::string>{R"({"a":1,"b":2})"});
  for (const std::string& text : texts({})) {
    EXPECT_TRUE(text == R"({"a":1,"b":2})" || text == R"({"a": 1,"b":2})" ||
                text == R"({"a":1, "b":2})" || text == R"({"a":1,"b": 2})" ||
                text == R"({"a": 1, "b":2})" || text == R"({"a": 1,"b": 2})" ||
                text == R"({"a":1, "b": 2})" || text == R"({"a": 1, "b": 2})")
        << text;
  }
  EXPECT_GT(texts({.pattern = "\\n?"}).size(), 4u);
}

TEST(JsonSchema, SchemasThatNoFiniteTextSatisfiesAreRefused) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  for (const char* schema :
       {R"({"$ref": "#"})",
        R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["next"],
            "properties": {"next": {"$ref": "#/$defs/n"}}}}})",
        R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "array",
            "items": {"$ref": "#/$defs/n"}, "minItems": 1}}})",
        R"({"type": "string", "minLength": 5, "maxLength": 2})"}) {
    SCOPED_TRACE(schema);
    EXPECT_TRUE(ErrorOf({ErrorCode::kInvalidArgument}, [&] {
                  vocabulary.compiler->Compile(SchemaGrammar(Json::parse(schema), "s"));
                }).has_value());
  }
}

TEST(JsonSchema, HostileSchemasAreRefusedOrServed) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  std::vector<Json> schemas;
  Json deep = {{"type", "string"}};
  for (int i = 0; i < 500; ++i) deep = {{"type", "array"}, {"items", deep}};
  schemas.push_back(deep);
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 5000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  schemas.push_back(wide);
  Json many = Json::object();
  for (int i = 0; i < 20000; ++i) many["enum"].push_back("choice " + std::to_string(i));
  schemas.push_back(many);
  Json long_text = {{"const", std::string(10 << 20, 'x')}};
  schemas.push_back(long_text);
  // Doubles at every level: 2^30 members if expanded.
  Json doubling = {{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 30; ++i) {
    const std::string next = "#/$defs/d" + std::to_string(i + 1);
    doubling["$defs"]["d" + std::to_string(i)] = {{"allOf", {{{"$ref", next}}, {{"$ref", next}}}}};
  }
  doubling["$defs"]["d30"] = {{"type", "string"}};
  schemas.push_back(doubling);
  schemas.push_back(Json::parse(R"({"$ref": "#"})"));
  schemas.push_back(Json::parse(R"({"$ref": "#/$defs/missing"})"));
  schemas.push_back(
      Json::parse(R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                                    "$ref": "#/$defs/a"})"));
  schemas.push_back(Json::parse(R"({"type": "string", "minLength": 5, "maxLength": 2})"));
  schemas.push_back(Json::parse(R"({"type": "integer", "minimum": 5, "maximum": 2})"));
  schemas.push_back(Json::parse(R"({"type": "string", "pattern": "(?=a)b"})"));
  schemas.push_back(
      Json::parse(R"({"type": "string", "pattern": "(a{1,500}){1,500}", "maxLength": 9})"));
  schemas.push_back(Json::parse(R"({"type": "array", "minItems": 9999, "maxItems": 10000})"));
  schemas.push_back(Json::parse(R"({"type": "string", "minLength": 9999, "maxLength": 10000})"));
  schemas.push_back(Json::parse(R"({"type": "nonsense"})"));
  std::mt19937 random(2);
  for (const Json& schema : schemas) {
    SCOPED_TRACE(schema.dump().substr(0, 80));
    std::shared_ptr<const Grammar> grammar;
    const auto refused =
        ErrorOf([&] { grammar = vocabulary.compiler->Compile(SchemaGrammar(schema, "s")); });
    if (refused) {
      EXPECT_EQ(refused->code(), ErrorCode::kInvalidArgument);
      continue;
    }
    ErrorOf([&] { RandomText(vocabulary, *grammar, random, 50); });
  }
}

}  // namespace
}  // namespace tandem::engine
