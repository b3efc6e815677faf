// Rendered chats and their ids as serving and training compute them: ChatTemplate, then
// Tokenizer::EncodeMixed.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/chat/chat_template.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

struct Marker {
  std::string spelling;
  TokenId id;
};

// A tokenizer, and those of its added tokens that control a model.
struct Subject {
  std::shared_ptr<Tokenizer> tokenizer;
  std::vector<Marker> markers;
};

Subject Load(const auto& json) {
  Subject subject{std::move(LoadJson(json.dump()).tokenizer), {}};
  for (const auto& token : json.at("added_tokens")) {
    const std::string content = token.at("content");
    const bool vocabulary = content.find_first_not_of(' ') == std::string::npos;
    if (!vocabulary) subject.markers.push_back({content, token.at("id")});
  }
  return subject;
}

// A tokenizer with every kind of marker: special or not, raw or normalised, one a prefix of
// another. A run of spaces is a normal token of its vocabulary.
Json TinyWithMarkers() {
  Json json = Json::parse(TinyTokenizerJson());
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}},
        {{"type", "Replace"}, {"pattern", {{"String", "\t"}}}, {"content", " "}}}}};
  int64_t id = 1000;
  const auto add = [&](const char* content, bool normalized) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", normalized},
                                    {"special", false}});
  };
  add("<tool_call>", false);
  add("</tool_call>", false);
  add("<think>", true);
  add("</think>", true);
  add("<think><end>", true);
  add("[TOOL_CALLS]", false);
  add("[TOOL", true);
  add("/nothink", true);
  add("    ", false);
  return json;
}

// Markers alone, adjacent, and next to a client's text; halves of markers that a client's text may
// complete.
constexpr const char* kTemplate =
    "{%- for m in messages -%}"
    "<|user|>{{ m.role }}\n<think>\n{{ m.content | trim }}</think><tool_call>{{ m.content }}"
    "<{{ m.content }}><tool_{{ m.content | upper | lower }}</tool_{{ m.content.split('>')[0] }}>"
    "{%- for call in m.tool_calls or [] -%}"
    "<tool_call>{{ {'name': call.name, 'arguments': call.arguments} | tojson }}</tool_call>"
    "[TOOL{{ call.name }}_CALLS]{{ call.arguments }}[TOOL_CALLS]"
    "{%- endfor -%}"
    "<think><end>{{ style }}<|end|>{{ '\\n' ~ m.content ~ '/nothink' }}"
    "{%- endfor -%}"
    "{%- for tool in tools or [] %}<tool_call>{{ tool | tojson(indent=4) }}{% endfor -%}"
    "<|user|><think>";

class Hostile {
 public:
  Hostile(const Subject& subject, uint64_t seed) : subject_(subject), random_(seed) {}

  std::string Text() {
    static const std::vector<std::string> kWords = {"",   " ",     "\n",    "dog", "    ", "<",
                                                    ">",  "<|",    "|>",    "</",  "\t",   "call>",
                                                    "12", "[TOOL", "end|>", "\"",  "'",    "a\\"};
    std::string text;
    for (size_t n = Below(6); n > 0; --n) {
      const std::string& marker = subject_.markers[Below(subject_.markers.size())].spelling;
      const size_t cut = Below(marker.size() + 1);
      switch (Below(5)) {
        case 0:
          text += marker.substr(0, cut);
          break;
        case 1:
          text += marker.substr(cut);
          break;
        case 2:
          text += kWords[Below(kWords.size())];
          break;
        default:
          text += marker;
      }
    }
    return text;
  }
  Json Call(const char* arguments) {
    Json object;
    for (size_t n = Below(3); n > 0; --n) object[Text()] = Text();
    return {{"name", Text()}, {"description", Text()}, {arguments, object}};
  }
  Json Messages() {
    Json messages = Json::array({{{"role", "system"}, {"content", Text()}}});
    for (size_t n = 1 + Below(3); n > 0; --n) {
      messages.push_back({{"role", "user"}, {"content", Text()}});
      Json answer = {{"role", "assistant"}, {"content", Text()}};
      for (size_t calls = Below(3); calls > 0; --calls) {
        answer["tool_calls"].push_back(Call("arguments"));
      }
      messages.push_back(std::move(answer));
      messages.push_back({{"role", "tool"}, {"tool_call_id", Text()}, {"content", Text()}});
    }
    return messages;
  }
  Json Tools() {
    Json tools = Json::array();
    for (size_t n = Below(3); n > 0; --n) {
      tools.push_back({{"type", "function"}, {"function", Call("parameters")}});
    }
    return tools;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }

  const Subject& subject_;
  std::mt19937_64 random_;
};

// The longest marker at position `at` of a template's text.
const Marker* MarkerAt(const Subject& subject, std::string_view text, size_t at) {
  const Marker* longest = nullptr;
  for (const Marker& marker : subject.markers) {
    if (!text.substr(at).starts_with(marker.spelling)) continue;
    if (!longest || marker.spelling.size() > longest->spelling.size()) longest = &marker;
  }
  return longest;
}

// The ids by definition: markers of the template's pieces, and all text between two markers as one.
Ids Expected(const Subject& subject, const std::vector<RenderedPiece>& pieces) {
  Ids ids;
  std::string between;
  const auto flush = [&] {
    const Ids more = subject.tokenizer->Encode(between, SpecialTokens::kPlainText);
    ids.insert(ids.end(), more.begin(), more.end());
    between.clear();
  };
  for (const RenderedPiece& piece : pieces) {
    for (size_t at = 0; at < piece.text.size();) {
      const Marker* marker = piece.from_client ? nullptr : MarkerAt(subject, piece.text, at);
      if (marker == nullptr) {
        between += piece.text[at++];
        continue;
      }
      flush();
      ids.push_back(marker->id);
      at += marker->spelling.size();
    }
  }
  flush();
  return ids;
}

bool IsMarker(const Subject& subject, TokenId id) {
  return std::any_of(subject.markers.begin(), subject.markers.end(),
                     [id](const Marker& marker) { return marker.id == id; });
}

// Checks 300 chats; returns how many markers their clients spelled out.
size_t CheckHostileChats(const Subject& subject, const ChatTemplate& chat_template,
                         bool keeps_tabs) {
  size_t spelled = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Hostile hostile(subject, seed);
    const Json messages = hostile.Messages(), tools = hostile.Tools();
    const Json extra = {{"style", hostile.Text()}};
    RenderInput input;
    input.messages = &messages;
    input.tools = &tools;
    input.extra = &extra;
    const std::vector<RenderedPiece> pieces = chat_template.Render(input);
    const std::string text = JoinPieces(pieces);

    const Ids ids = subject.tokenizer->EncodeMixed(text, ClientRanges(pieces));
    std::string decoded;
    size_t markers = 0;
    for (const TokenId id : ids) {
      decoded += subject.tokenizer->TokenBytes(id);
      markers += IsMarker(subject, id) ? 1 : 0;
    }
    std::string whole = text;
    if (!keeps_tabs) std::replace(whole.begin(), whole.end(), '\t', ' ');
    EXPECT_EQ(decoded, whole);
    EXPECT_EQ(ids, Expected(subject, pieces)) << text;
    const Ids trusting = subject.tokenizer->Encode(text, SpecialTokens::kParseSpecial);
    const auto all = std::count_if(trusting.begin(), trusting.end(),
                                   [&](TokenId id) { return IsMarker(subject, id); });
    spelled += static_cast<size_t>(std::max<int64_t>(0, all - static_cast<int64_t>(markers)));
  }
  return spelled;
}

TEST(ChatEncoding, NothingAClientSpellsIsAMarkerAndTheTemplatesOwnMarkersAlwaysAre) {
  const Subject subject = Load(TinyWithMarkers());
  ASSERT_EQ(subject.markers.size(), 10u);
  EXPECT_GT(CheckHostileChats(subject, *ChatTemplate::Compile(kTemplate), /*keeps_tabs=*/false),
            1000u);
}

TEST(ChatEncoding, PlainTextHasNoMarkers) {
  const Subject subject = Load(TinyWithMarkers());
  for (const Marker& marker : subject.markers) {
    for (const TokenId id :
         subject.tokenizer->Encode("a " + marker.spelling + " b", SpecialTokens::kPlainText)) {
      EXPECT_FALSE(IsMarker(subject, id)) << marker.spelling;
    }
  }
}

// Templates such as Phi-4's write '<|' + message.role + '|>'.
TEST(ChatEncoding, TemplatesMayBuildMarkersOfRoles) {
  const Subject subject = Load(TinyWithMarkers());
  const Json messages = {{{"role", "user"}, {"content", "user|>"}}};
  RenderInput input;
  input.messages = &messages;
  const auto pieces =
      ChatTemplate::Compile("{{ '<|' ~ messages[0].role ~ '|><|' ~ messages[0].content }}")
          ->Render(input);
  const Ids ids = subject.tokenizer->EncodeMixed(JoinPieces(pieces), ClientRanges(pieces));

  EXPECT_EQ(ids.front(), *subject.tokenizer->FindToken("<|user|>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ids.front()), 1);
}

// NFC composes '>' and U+0338.
TEST(ChatEncoding, AClientsAccentDoesNotBreakTheMarkerBeforeIt) {
  const Subject subject = Load(TinyWithMarkers());
  const std::string text = "<think>\u0338a";
  const std::vector<TextRange> client = {{7, text.size()}};
  EXPECT_EQ(subject.tokenizer->EncodeMixed(text, client).front(),
            *subject.tokenizer->FindToken("<think>"));
}

TEST(ChatEncoding, VocabularyIsFoundInAnyText) {
  const Subject subject = Load(TinyWithMarkers());
  const TokenId spaces = *subject.tokenizer->FindToken("    ");
  const std::vector<TextRange> client = {{2, 6}};
  EXPECT_EQ(subject.tokenizer->EncodeMixed("a    b", client)[1], spaces);
  EXPECT_EQ(subject.tokenizer->Encode("a    b", SpecialTokens::kPlainText)[1], spaces);
}

// ---- Qwen2.5's tokenizer from the shared data

std::optional<Subject> LoadQwen() {
  const auto json = ReadIfThere(SharedData() / "tokenizers/qwen2.5/tokenizer.json");
  if (!json) return std::nullopt;
  // Sorted names: the ordered kind takes quadratic time for 150,000 of them.
  return Load(nlohmann::json::parse(*json));
}

TEST(ChatEncoding, QwensChatsAreSafeFromTheirClients) {
  const std::optional<Subject> subject = LoadQwen();
  const auto source = ReadIfThere(SharedData() / "chat_templates/qwen2.5-7b-instruct.jinja");
  if (!subject || !source) GTEST_SKIP() << tests::AbsentData(SharedData());
  ASSERT_EQ(subject->markers.size(), 22u);
  EXPECT_GT(CheckHostileChats(*subject, *ChatTemplate::Compile(*source), /*keeps_tabs=*/true),
            1000u);
}

// The reference parses the whole rendered text. We agree if no client spells a marker.
TEST(ChatEncoding, ChatsWithoutMarkersOfClientsAreEncodedAsTheReferenceDoes) {
  const std::optional<Subject> subject = LoadQwen();
  const auto vectors = ReadIfThere(SharedData() / "chat_template_vectors/vectors.jsonl");
  const auto scenarios = ReadIfThere(SharedData() / "chat_template_vectors/scenarios.json");
  if (!subject || !vectors || !scenarios) GTEST_SKIP() << tests::AbsentData(SharedData());
  const Json chats = Json::parse(*scenarios)["scenarios"];
  int checked = 0;
  std::istringstream lines(*vectors);
  for (std::string line; std::getline(lines, line);) {
    const Json vector = Json::parse(line);
    const std::string name = vector["template"];
    if (!name.starts_with("qwen") || vector.contains("raises")) continue;
    Json extra = chats.at(vector["scenario"].get<std::string>());
    const Json messages = extra["messages"], tools = extra.value("tools", Json());
    const std::string clients = messages.dump() + tools.dump();
    if (std::any_of(subject->markers.begin(), subject->markers.end(), [&](const Marker& marker) {
          return clients.find(marker.spelling) != std::string::npos;
        })) {
      continue;
    }
    extra.erase("messages");
    extra.erase("tools");
    RenderInput input;
    input.messages = &messages;
    input.tools = &tools;
    input.extra = &extra;
    input.add_generation_prompt = vector["add_generation_prompt"];
    const auto pieces =
        ChatTemplate::Compile(*ReadIfThere(SharedData() / "chat_templates" / name))->Render(input);
    const std::string text = vector["expected"];
    ASSERT_EQ(JoinPieces(pieces), text);
    EXPECT_EQ(subject->tokenizer->EncodeMixed(text, ClientRanges(pieces)),
              subject->tokenizer->Encode(text, SpecialTokens::kParseSpecial));
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

}  // namespace
}  // namespace tandem::engine
