#include "engine/draft.h"

#include <gtest/gtest.h>

#include <string>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

class DraftTest : public testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, const std::string& family = "llama",
                              bool with_tokenizer = true) {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.with_tokenizer = with_tokenizer;
    bench::WriteRandomModel(spec, dir_.path() / name);
    return dir_.path() / name;
  }
  LoadedModel Open(const std::filesystem::path& path) {
    EngineOptions options;
    options.threads = 1;
    return OpenModel(ModelDir::Open(path), options, "");
  }
  // The message of the refusal.
  std::string Refusal(LoadedModel target, const LoadedModel& draft, ErrorCode code) {
    try {
      AttachDraft(target, "large", draft, "small");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(target.draft, nullptr);
      return error.what();
    }
    return "nothing was refused";
  }

  tests::TemporaryDir dir_;
};

TEST_F(DraftTest, TakesAModelOfTheSameVocabulary) {
  LoadedModel target = Open(Write("a"));
  const LoadedModel draft = Open(Write("b", "gemma2"));
  AttachDraft(target, "a", draft, "b");
  EXPECT_EQ(target.draft, draft.model);
}

TEST_F(DraftTest, RefusesAnotherVocabularyByNameAndToken) {
  const LoadedModel target = Open(Write("a"));
  const std::filesystem::path other = Write("b");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "config.json"}) {
    std::string json = ReadWholeFile(other / name, 1 << 24);
    const std::string old = "<|endoftext|>";
    for (size_t at = json.find(old); at != std::string::npos; at = json.find(old, at)) {
      json.replace(at, old.size(), "<|endofstory|>");
    }
    WriteFileAtomically(other / name, json);
  }
  const std::string message = Refusal(target, Open(other), ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("'large'"), std::string::npos) << message;
  EXPECT_NE(message.find("'small'"), std::string::npos) << message;
  EXPECT_NE(message.find("endofstory"), std::string::npos) << message;
}

TEST_F(DraftTest, RefusesAModelWithoutTokenizer) {
  const std::string message =
      Refusal(Open(Write("a")), Open(Write("b", "llama", false)), ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("tokenizer"), std::string::npos) << message;
}

TEST_F(DraftTest, RefusesRecurrentLayersOnEitherSide) {
  const LoadedModel plain = Open(Write("a"));
  const LoadedModel recurrent = Open(Write("b", "mamba2"));
  EXPECT_NE(Refusal(plain, recurrent, ErrorCode::kUnsupported).find("draft model 'small'"),
            std::string::npos);
  EXPECT_NE(Refusal(recurrent, plain, ErrorCode::kUnsupported).find("model 'large'"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::engine
