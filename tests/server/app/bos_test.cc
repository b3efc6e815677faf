// The template adds BOS to chats, the tokenizer to plain prompts. A prompt never has two; it
// has one if either source asks for it.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

constexpr int kBos = 0;  // the first of the tiny model's special tokens
constexpr int kEos = 1;

Json ReadJson(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return Json::parse(text.str());
}

class BosTest : public AppTest {
 protected:
  // Where the tokenizer's files ask for BOS: the flag, and tokenizer.json's post-processor.
  struct Says {
    const char* name;
    Json flag;
    bool surrounds;
    bool plain_prompts_have_it;
  };

  void StartWith(const Says& says, const std::string& chat_template) {
    const std::filesystem::path dir = directory_->path() / "bos";
    std::filesystem::remove_all(dir);
    std::filesystem::create_directory(dir);
    tests::TinyModelOptions model;
    model.chat_template = chat_template;
    tests::WriteTinyModel(dir, model);
    Json config = ReadJson(dir / "tokenizer_config.json");
    config.erase("add_bos_token");
    if (!says.flag.is_null()) config["add_bos_token"] = says.flag;
    std::ofstream(dir / "tokenizer_config.json") << config.dump();
    Json tokenizer = ReadJson(dir / "tokenizer.json");
    tokenizer["post_processor"] = nullptr;
    if (says.surrounds) {
      tokenizer["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
          "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<bos>": {"id": "<bos>", "ids": [0], "tokens": ["<bos>"]}}})");
    }
    std::ofstream(dir / "tokenizer.json") << tokenizer.dump();
    AppOptions options = Defaults();
    options.models = {{"", dir.string()}};
    StartApp(std::move(options));
  }

  std::vector<int> Rendered(const Json& more) {
    Json body = {{"messages", Json::parse(R"([{"role": "user", "content": "Hi <bos> there"},
                                              {"role": "assistant", "content": "<bos>Yes."}])")}};
    body.update(more);
    const Json answer = PostJson("/v1/render", body);
    std::vector<int> ids;
    for (const Json& token : answer["tokens"]) ids.push_back(token["id"]);
    EXPECT_EQ(answer["count"], ids.size());
    const bool begins = !ids.empty() && ids.front() == kBos;
    EXPECT_EQ(answer["bos_from"], begins ? Json("template") : Json());
    return ids;
  }

  static std::ptrdiff_t CountBos(const std::vector<int>& ids) {
    return std::count(ids.begin(), ids.end(), kBos);
  }
};

TEST_F(BosTest, HasOneOwnerInChatsAndOneInPlainPrompts) {
  const std::vector<Says> tokenizers = {
      {"flag on", true, false, true},
      {"flag off", false, false, false},
      {"no flag", Json(), false, false},
      {"surroundings", Json(), true, true},
      {"surroundings and flag on", true, true, true},
      {"surroundings, flag off", false, true, false},
  };
  const std::string turns =
      "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}\n{% endfor %}";
  const std::vector<std::pair<std::string, int>> templates = {
      {"{{ bos_token }}" + turns, 1},
      {"<bos>" + turns, 1},
      {turns, 0},
      {"{{ bos_token + '' if messages else '' }}" + turns, 1},
  };
  for (const Says& says : tokenizers) {
    for (const auto& [source, expected] : templates) {
      SCOPED_TRACE(std::string(says.name) + ", " + source);
      StartWith(says, source);

      const std::vector<int> ids = Rendered({{"add_generation_prompt", false}});
      EXPECT_EQ(CountBos(ids), expected);
      if (expected == 1) {
        EXPECT_EQ(ids.front(), kBos);
      }
      // Training renders the same chat to the same tokens and EOS, since the template ends no turn.
      std::vector<int> trained = Rendered({{"train", true}, {"add_generation_prompt", false}});
      ASSERT_EQ(trained.size(), ids.size() + 1);
      EXPECT_EQ(trained.back(), kEos);
      trained.pop_back();
      EXPECT_EQ(trained, ids);
      const Json counted =
          PostJson("/v1/chat/completions",
                   {{"model", "bos"},
                    {"messages", Json::parse(R"([{"role": "user", "content": "Hi"}])")},
                    {"max_tokens", 1}});
      EXPECT_EQ(
          counted["usage"]["prompt_tokens"],
          PostJson("/v1/render",
                   {{"messages", Json::parse(R"([{"role": "user", "content": "Hi"}])")}})["count"]);

      const std::vector<int> plain =
          PostJson("/tokenize", {{"prompt", "Hi <bos>"}})["tokens"].get<std::vector<int>>();
      EXPECT_EQ(CountBos(plain), says.plain_prompts_have_it ? 1 : 0);
      const Json completed = PostJson(
          "/v1/completions", {{"model", "bos"}, {"prompt", "Hi <bos>"}, {"max_tokens", 1}});
      EXPECT_EQ(completed["usage"]["prompt_tokens"], plain.size());
    }
  }
}

// Templates are code: a request cannot bring its own.
TEST_F(BosTest, ARequestsOwnTemplateIsNotUsed) {
  StartWith({"flag on", true, false, true}, "model's{{ messages[0].content }}");

  const Json body = {{"messages", Json::parse(R"([{"role": "user", "content": "{{ 7 * 7 }}"}])")},
                     {"chat_template", "{{ 7 * 7 }}"}};
  EXPECT_EQ(PostJson("/v1/render", body)["text"], "model's{{ 7 * 7 }}");
  Json inside = body;
  inside["chat_template_kwargs"] = {{"chat_template", "{{ 7 * 7 }}"}};
  EXPECT_EQ(PostJson("/v1/render", inside)["text"], "model's{{ 7 * 7 }}");
}

}  // namespace
}  // namespace tandem::server
