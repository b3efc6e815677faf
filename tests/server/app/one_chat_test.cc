// A chat has one reading: `tandem data show`, /v1/render with `train`, and serving's prompts agree
// in text, tokens and mask.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/base/thread_pool.h"
#include "tests/server/app/app_fixture.h"
#include "training/setup/data_view.h"
#include "training/setup/model_files.h"
#include "training/setup/open_data.h"

namespace tandem::server {
namespace {

constexpr int kChats = 500;

// Writes every key of every message, so that every difference shows.
constexpr const char* kWritesAll =
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.role ~ '\n' }}{% for k in m %}"
    "{% if k != 'role' %}{{ k ~ '=' ~ (m[k] | tojson) ~ ';' }}{% endif %}{% endfor %}<end>{{ '\n' "
    "}}"
    "{% endfor %}{% if add_generation_prompt %}<turn>{{ 'assistant\n' }}{% endif %}";
// Like kWritesAll, but only the last answer keeps its thought.
constexpr const char* kRewrites =
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.role ~ '\n' }}"
    "{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>' ~ (m.reasoning_content | default('')) ~ '</think>' }}{% endif %}"
    "{% for k in m %}{% if k not in ['role', 'reasoning_content'] %}"
    "{{ k ~ '=' ~ (m[k] | tojson) ~ ';' }}{% endif %}{% endfor %}<end>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<turn>{{ 'assistant\n' }}{% endif %}";
// The generation prompt opens a thought that written answers lack.
constexpr const char* kOpensThought =
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.role ~ '\n' }}"
    "{% for k in m %}{% if k not in ['role', 'reasoning_content'] %}"
    "{{ k ~ '=' ~ (m[k] | tojson) ~ ';' }}{% endif %}{% endfor %}<end>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<turn>{{ 'assistant\n<think>\n' }}{% endif %}";

class ChatMaker {
 public:
  explicit ChatMaker(uint64_t seed) : random_(seed) {}

  // A chat that training accepts. Every tool call is answered by id, so serving accepts it too.
  Json Make() {
    Json messages = Json::array();
    if (Chance(40)) messages.push_back(Plain(Chance(50) ? "system" : "developer"));
    const int turns = 1 + Below(3);
    for (int i = 0; i < turns; ++i) {
      messages.push_back(Plain("user"));
      if (Chance(30)) AddCalls(messages);
      messages.push_back(Answer());
    }
    return messages;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  std::string Word() {
    static const std::vector<std::string> words = {
        "dog", "Ball",  "é",         "<turn>", "<end>", "</think>", "<think>",
        "\n",  "  two", "\"quote\"", "{}",     "日本",  "a\\b",     "Tom was happy."};
    return words[static_cast<size_t>(Below(static_cast<int>(words.size())))];
  }
  std::string Text() {
    std::string text = "x";
    for (int i = Below(4); i > 0; --i) text += " " + Word();
    return text;
  }
  Json Content(bool is_assistant) {
    if (Chance(60)) return Text();
    Json parts = Json::array();
    for (int i = 1 + Below(3); i > 0; --i) {
      const bool refuses = is_assistant && Chance(30);
      const char* key = refuses ? "refusal" : "text";
      parts.push_back({{"type", key}, {key, Text()}});
      if (Chance(20)) parts.back()["image_url"] = nullptr;
    }
    return parts;
  }
  void AddUnknown(Json& message) {
    if (Chance(20)) message["audio"] = nullptr;
    if (Chance(20)) message["annotations"] = Json::array();
    if (Chance(20)) message["tool_plan"] = {{"steps", {1, Text()}}, {"done", Chance(50)}};
    if (Chance(15)) message["name"] = "n" + std::to_string(Below(3));
  }
  Json Plain(const char* role) {
    Json message = {{"role", role}};
    if (Chance(20)) message["tool_calls"] = nullptr;
    message["content"] = Content(false);
    AddUnknown(message);
    return message;
  }
  Json Answer() {
    Json message = {{"role", "assistant"}};
    if (Chance(30)) {
      static constexpr const char* kNames[] = {"reasoning_content", "reasoning", "thinking"};
      message[kNames[Below(3)]] = Text();
    }
    const int kind = Below(10);
    if (kind == 0) {
      message["content"] = nullptr;
      message["refusal"] = Text();
    } else {
      message["content"] = Content(true);
      if (kind == 1) message["refusal"] = Text();
      if (kind == 2) message["refusal"] = nullptr;
    }
    AddUnknown(message);
    if (Chance(20)) message["weight"] = 1;
    return message;
  }
  void AddCalls(Json& messages) {
    Json message = {{"role", "assistant"}};
    if (Chance(70)) message["content"] = Chance(50) ? Json() : Json(Text());
    Json calls = Json::array();
    for (int i = 1 + Below(2); i > 0; --i) {
      const Json arguments = {{"b", Below(9)}, {"a", Text()}};
      Json call = Json::object();
      if (Chance(60)) call["id"] = "c" + std::to_string(i);
      if (Chance(60)) call["type"] = "function";
      call["function"]["name"] = "f";
      call["function"]["arguments"] = Chance(50) ? Json(arguments.dump()) : arguments;
      calls.push_back(std::move(call));
    }
    message["tool_calls"] = calls;
    AddUnknown(message);
    messages.push_back(std::move(message));
    for (size_t i = 0; i < calls.size(); ++i) {
      Json result = {{"role", "tool"}, {"content", Content(false)}};
      result["tool_call_id"] = calls[i].value("id", "none");
      messages.push_back(std::move(result));
    }
  }

  std::mt19937_64 random_;
};

class OneChatTest : public AppTest {
 protected:
  void StartWith(const std::string& chat_template) {
    model_ = directory_->path() / "chat";
    std::filesystem::remove_all(model_);
    std::filesystem::create_directory(model_);
    tests::TinyModelOptions model;
    model.chat_template = chat_template;
    model.max_context_len = 8192;
    tests::WriteTinyModel(model_, model);
    AppOptions options = Defaults();
    options.models = {{"", model_.string()}};
    StartApp(std::move(options));
  }

  // Opens the chats as rows, as `tandem data show` does.
  training::OpenedData OpenRows(const std::vector<Json>& chats) {
    const std::filesystem::path file = directory_->path() / "chats.jsonl";
    std::ofstream rows(file);
    for (const Json& chat : chats) rows << Json{{"messages", chat}}.dump() << "\n";
    rows.close();
    const std::vector<std::string> words = {"load_parameters_path=" + model_.string(),
                                            "data.train=" + file.string()};
    const training::TrainSpec spec = training::ParseTrainSpec(
        "kind: train.sft\ndata: {max_target_length: 8192}\ntrain: {steps: 1}\n", "spec", words);
    files_ = training::LoadModelFiles(spec);
    ThreadPool pool(1);
    return OpenData(spec, files_, pool, {});
  }

  static std::string Marked(const engine::Tokenizer& tokenizer, const training::Sample& sample) {
    return MarkedText(tokenizer, sample, {"[[", "]]"});
  }

  static training::Sample SampleOf(const Json& rendered) {
    training::Sample sample;
    std::string text;
    for (const Json& token : rendered["tokens"]) {
      sample.Append({token["id"].get<TokenId>()}, token["loss"].get<bool>());
      for (const int byte : token["bytes"]) text.push_back(static_cast<char>(byte));
    }
    EXPECT_EQ(text, rendered["text"].get<std::string>());
    return sample;
  }

  std::vector<TokenId> PromptOf(const Json& messages, std::string* text) {
    std::vector<TokenId> ids;
    const Json rendered = PostJson("/v1/render", {{"messages", messages}});
    *text = rendered["text"].get<std::string>();
    for (const Json& token : rendered["tokens"]) {
      ids.push_back(token["id"]);
    }
    return ids;
  }

  // Every trained span of the sample begins at the end of one of serving's prompts.
  void ExpectPrompts(const Json& chat, const training::Sample& sample) {
    size_t n_found = 0;
    std::string others;  // prompts that are no beginning of the sample
    for (size_t i = 0; i < chat.size(); ++i) {
      if (chat[i]["role"] != "assistant") continue;
      Json before = Json::array();
      for (size_t k = 0; k < i; ++k) before.push_back(chat[k]);
      std::string text;
      const std::vector<TokenId> prompt = PromptOf(before, &text);
      const size_t n = prompt.size();
      if (n >= sample.tokens.size() || sample.trained[n] == 0 ||
          !std::equal(prompt.begin(), prompt.end(), sample.tokens.begin())) {
        others += "\n--- prompt of message " + std::to_string(i) + ": " + text;
        continue;
      }
      EXPECT_EQ(sample.trained[n - 1], 0);
      ++n_found;
    }
    size_t n_stretches = 0;
    for (size_t t = 1; t < sample.tokens.size(); ++t) {
      if (sample.trained[t] != 0 && sample.trained[t - 1] == 0) ++n_stretches;
    }
    EXPECT_EQ(n_found, n_stretches) << others;
    EXPECT_GT(n_found, 0u);
  }

  void ExpectOneReading(const char* chat_template, uint64_t seed, bool may_split) {
    StartWith(chat_template);
    std::vector<Json> chats;
    ChatMaker maker(seed);
    for (int i = 0; i < kChats; ++i) chats.push_back(maker.Make());
    const training::OpenedData data = OpenRows(chats);
    EXPECT_EQ(data.report.split_rows > 0, may_split);
    int64_t next = 0;
    for (size_t i = 0; i < chats.size(); ++i) {
      SCOPED_TRACE(chats[i].dump());
      const Json answer = PostJson("/v1/render", {{"messages", chats[i]}, {"train", true}});
      Json samples = answer.value("earlier_samples", Json::array());
      samples.push_back(answer);
      for (const Json& rendered : samples) {
        ASSERT_LT(next, data.source->size());
        ASSERT_TRUE(data.source->Where(next).starts_with("line " + std::to_string(i + 1)));
        const training::Sample trained = data.source->Make(next++);
        const training::Sample shown = SampleOf(rendered);
        ASSERT_EQ(trained.tokens, shown.tokens);
        ASSERT_EQ(trained.trained, shown.trained);
        ASSERT_EQ(Marked(*files_.tokenizer, trained), Marked(*files_.tokenizer, shown));
        ExpectPrompts(chats[i], trained);
      }
      if (HasFailure()) return;
    }
    EXPECT_EQ(next, data.source->size());
  }

  std::filesystem::path model_;
  training::ModelFiles files_;
};

TEST_F(OneChatTest, TrainingRenderAndServingReadGeneratedChatsAlike) {
  ExpectOneReading(kWritesAll, 1, false);
}

TEST_F(OneChatTest, TheyDoWhereTheTemplateRewritesEarlierAnswers) {
  ExpectOneReading(kRewrites, 2, true);
}

TEST_F(OneChatTest, TheyDoWhereThePromptOpensAThought) { ExpectOneReading(kOpensThought, 3, true); }

TEST_F(OneChatTest, RenderRefusesWhatTrainingRefusesAndNamesTheField) {
  StartWith(kWritesAll);
  const auto param = [&](const char* messages) {
    const Json answer =
        PostJson("/v1/render", {{"messages", Json::parse(messages)}, {"train", true}}, 400);
    return answer["error"]["param"];
  };
  EXPECT_EQ(param(R"([{"role": "user", "content": "a"}])"), "messages");
  EXPECT_EQ(param(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [1]}])"),
            "messages[1].content[0]");
  EXPECT_EQ(param(R"([{"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b", "weight": 2}])"),
            "messages[1].weight");
  EXPECT_EQ(param(R"([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [
                      {"function": {"name": "f", "arguments": "{"}}]}])"),
            "messages[1].tool_calls[0].function.arguments");
}

// ---- continue_final_message

class ContinueTest : public OneChatTest {
 protected:
  // The prompt for a chat whose last answer is continued.
  std::string Opened(const Json& answer) {
    Json last = {{"role", "assistant"}};
    last.update(answer);
    const Json messages = Json::array({{{"role", "user"}, {"content", "q"}}, last});
    return PostJson("/v1/render",
                    {{"messages", messages}, {"continue_final_message", true}})["text"];
  }
};

TEST_F(ContinueTest, ATrimmingTemplateKeepsTheWhiteSpaceAtTheEnd) {
  StartWith(
      "{% for m in messages %}{{ '[INST] ' + m.content | trim + ' [/INST]' if m.role == 'user' "
      "else ' ' + m.content | trim + ' ' + eos_token }}{% endfor %}");

  EXPECT_EQ(Opened({{"content", "Once upon"}}), "[INST] q [/INST] Once upon");
  EXPECT_EQ(Opened({{"content", " Once upon \n"}}), "[INST] q [/INST] Once upon \n");
}

// For templates that move the thought out of the content, or drop it.
TEST_F(ContinueTest, AnAnswerWithAThoughtStandsAsTheModelWroteIt) {
  StartWith(
      "{% for m in messages %}<turn>{{ m.role + '\n' }}{% if m.role == 'assistant' %}"
      "{% set thought = m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1]"
      " if '</think>' in m.content else '') %}"
      "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}"
      "{{ m.content.split('</think>')[-1].lstrip('\n') }}<end>{{ '\n' }}{% endfor %}"
      "{% if add_generation_prompt %}<turn>{{ 'assistant\n' }}{% endif %}");
  const std::string begin = "<turn>user\nq<end>\n<turn>assistant\n";

  EXPECT_EQ(Opened({{"content", "<think>\nhm\n</think>\n\nAnd so"}}),
            begin + "<think>\nhm\n</think>\n\nAnd so");
  EXPECT_EQ(Opened({{"content", "<think>\nhm, he"}}), begin + "<think>\nhm, he");
  EXPECT_EQ(Opened({{"content", "And so"}, {"reasoning", "hm"}}),
            begin + "<think>\nhm\n</think>\n\nAnd so");
}

TEST_F(ContinueTest, AThoughtThatThePromptOpensIsNotOpenedTwice) {
  StartWith(kOpensThought);

  EXPECT_EQ(Opened({{"content", "<think>\nhm, he"}}),
            "<bos><turn>user\ncontent=\"q\";<end>\n<turn>assistant\n<think>\nhm, he");
}

TEST_F(ContinueTest, AFinalMessageThatTheTemplateDoesNotWriteIsRefused) {
  StartWith("{% for m in messages %}{{ m.role }}{% endfor %}");
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "user"}}});
  const Json answer =
      PostJson("/v1/render", {{"messages", messages}, {"continue_final_message", true}}, 400);
  EXPECT_EQ(answer["error"]["param"], "continue_final_message");
}

}  // namespace
}  // namespace tandem::server
