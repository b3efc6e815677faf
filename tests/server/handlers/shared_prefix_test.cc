// The beginning that chats of one agent share, which models with recurrent layers keep a state for.

#include "server/handlers/shared_prefix.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/models/random_model.h"
#include "engine/formats/model_dir.h"
#include "engine/kv/block_table.h"
#include "server/handlers/prompt.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

const char* const kInstructions =
    "You write short stories about cats for children. Every story has three sentences.";

std::shared_ptr<const ServedModel> Open(const std::filesystem::path& dir, const char* family) {
  bench::RandomModelSpec spec;
  spec.config = bench::TinyModelConfig(family);
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, dir);
  engine::EngineOptions options;
  options.threads = 1;
  options.max_seqs = 2;
  options.kv_cache_bytes = 16 << 20;
  auto model = std::make_shared<ServedModel>();
  model->id = "m";
  model->engine = std::make_shared<engine::Engine>(
      engine::OpenModel(engine::ModelDir::Open(dir), options, ""), options);
  return model;
}

EncodedChat Encode(const ServedModel& model, const std::string& question) {
  ChatPrompt prompt;
  prompt.messages = std::make_shared<const ordered_json>(ordered_json{
      {{"role", "system"}, {"content", kInstructions}}, {{"role", "user"}, {"content", question}}});
  return EncodeChat(model, prompt);
}

int64_t CachedTokens(const ServedModel& model, const EncodedChat& chat) {
  engine::GenerationRequest request;
  request.prompt = chat.ids;
  request.shared_tokens = chat.shared_tokens;
  request.stop.max_new_tokens = 1;
  return tests::Run(*model.engine, std::move(request)).only().finished->usage.cached_tokens;
}

TEST(SharedPrefix, TheSecondChatReusesTheInstructionsOfTheFirst) {
  const tests::TemporaryDir dir;
  const auto model = Open(dir.path() / "model", "qwen3_next");
  const EncodedChat first = Encode(*model, "What does the cat say?");
  const EncodedChat second = Encode(*model, "Why is it raining today?");
  ASSERT_GT(first.shared_tokens, 80);
  ASSERT_EQ(first.shared_tokens, second.shared_tokens);
  EXPECT_EQ(CachedTokens(*model, first), 0);

  constexpr int64_t kBlock = engine::kTokensPerBlock;
  EXPECT_EQ(CachedTokens(*model, second), first.shared_tokens / kBlock * kBlock);
}

TEST(SharedPrefix, IsNotSoughtForModelsThatKeepKeysOnly) {
  const tests::TemporaryDir dir;
  const auto model = Open(dir.path() / "model", "llama");

  EXPECT_EQ(Encode(*model, "What does the cat say?").shared_tokens, 0);
}

class SharedTokensTest : public testing::Test {
 protected:
  SharedTokensTest() : model_(Open(dir_.path() / "model", "llama")) {}

  // The tokenizer has a token per byte, so the result counts bytes.
  int64_t Shared(const char* source, const ordered_json& messages) {
    const auto chat_template = engine::ChatTemplate::Compile(source);
    engine::RenderInput input;
    input.messages = &messages;
    const auto pieces = chat_template->Render(input);
    const std::string text = engine::JoinPieces(pieces);
    const engine::Tokenizer& tokenizer = *model_->loaded().tokenizer;
    const auto ids = tokenizer.EncodeMixed(text, engine::ClientRanges(pieces));
    return SharedTokens(*chat_template, tokenizer, input, text, ids);
  }

  tests::TemporaryDir dir_;
  std::shared_ptr<const ServedModel> model_;
};

const char* const kPlain =
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}";
const ordered_json kSystem = {{"role", "system"}, {"content", "Be kind."}};
const ordered_json kDeveloper = {{"role", "developer"}, {"content", "Be brief."}};
const ordered_json kUser = {{"role", "user"}, {"content", "Be a cat."}};

TEST_F(SharedTokensTest, EndsBeforeTheFirstMessageThatIsNoInstruction) {
  const std::string shared = "[system] Be kind.\n[developer] Be brief.\n[user] ";
  EXPECT_EQ(Shared(kPlain, ordered_json::array({kSystem, kDeveloper, kUser, kSystem})),
            std::ssize(shared));
  EXPECT_EQ(Shared(kPlain, ordered_json::array({kUser})), 7);
}

TEST_F(SharedTokensTest, OfInstructionsAloneIsUnknown) {
  EXPECT_EQ(Shared(kPlain, ordered_json::array({kSystem})), 0);
}

TEST_F(SharedTokensTest, IsUnknownWhereTheTemplateMovesOrRejectsIt) {
  const auto chat = ordered_json::array({kSystem, kUser});
  EXPECT_EQ(Shared("{{ messages[-1]['content'] }}{{ messages[0]['content'] }}", chat), 0);
  EXPECT_EQ(Shared("{{ messages[0]['content'] }}", chat), 0);
  EXPECT_EQ(Shared("{% if messages[1]['content'] != 'Be a cat.' %}{{ raise_exception('no') }}"
                   "{% endif %}{{ messages[0]['content'] }}",
                   chat),
            0);
}

}  // namespace
}  // namespace tandem::server
