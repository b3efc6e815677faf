// Both halves of the JAX tutorial with its presets, at a small size: a miniGPT learns one text, an
// adapter makes it write like another.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <span>

#include "bench/models/random_model.h"
#include "engine/io/atomic_write.h"
#include "engine/io/sha256.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "training/run/run.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class TutorialTest : public testing::Test {
 protected:
  TutorialTest() {
    bench::RandomModelSpec tokenizer;
    tokenizer.config = bench::TinyMiniGptConfig();
    tokenizer.with_tokenizer = true;
    bench::WriteRandomModel(tokenizer, dir_ / "tokenizer");
    std::ofstream stories(dir_ / "stories.txt"), plays(dir_ / "plays.txt");
    for (int i = 0; i < 60; ++i) {
      stories << "The little " << (i % 2 != 0 ? "dog" : "cat") << " ran home and was happy.\n"
              << "<|endoftext|>\n";
      plays << "KING:\nWhat news, good " << (i % 3 != 0 ? "cousin" : "lord")
            << "? Speak, and be brief.\n\n";
    }
  }

  TrainOutcome Run(const std::string& preset, const std::string& name,
                   std::vector<std::string> words) {
    for (const char* word :
         {"max_target_length=64", "per_device_batch_size=2", "gradient_accumulation_steps=1",
          "sample_period=0", "checkpoint_period=0", "resources.threads=1", "dropout_rate=0"}) {
      words.emplace_back(word);
    }
    JobContext context;
    context.dir = dir_ / name;
    context.report = [&](const ProgressEvent& event) { said_ += event.message + "\n"; };
    return RunTraining(LoadTrainSpec(tests::SourceDir() / "config/presets" / preset, words),
                       context);
  }

  tests::TemporaryDir dir_;
  std::string said_;
};

TEST_F(TutorialTest, AnAdapterLearnsAnotherStyleAndTheModelStaysAsItIs) {
  const TrainOutcome pretrained =
      Run("minigpt-tinystories.yaml", "stories",
          {"dataset_path=" + (dir_ / "stories.txt").string(),
           "tokenizer_path=" + (dir_ / "tokenizer").string(), "base_num_decoder_layers=2",
           "base_emb_dim=32", "base_mlp_dim=32", "base_num_query_heads=2", "vocab_size=272",
           "max_position_embeddings=64", "steps=60"});
  const fs::path weights = pretrained.model_dir / "model.safetensors";
  const auto hash = [&] {
    const std::string bytes = engine::ReadWholeFile(weights, 1 << 24);
    return engine::Sha256Of(std::as_bytes(std::span(bytes)));
  };
  const auto before = hash();
  const auto adapt = [&](const std::string& name, const std::string& rate) {
    return Run("minigpt-shakespeare-lora.yaml", name,
               {"load_parameters_path=" + pretrained.model_dir.string(),
                "dataset_path=" + (dir_ / "plays.txt").string(),
                "eval_dataset_path=" + (dir_ / "plays.txt").string(), "steps=60",
                "learning_rate=" + rate});
  };

  const double untouched = adapt("nothing", "0").eval_loss;
  const TrainOutcome adapted = adapt("plays", "1e-2");

  EXPECT_LT(std::exp(adapted.eval_loss), 0.8 * std::exp(untouched));
  EXPECT_EQ(hash(), before);
  EXPECT_TRUE(adapted.model_dir.empty());
  EXPECT_NE(said_.find("lora.module_path: \".*mha\" matches no linear layer as its whole path"),
            std::string::npos)
      << said_;
}

}  // namespace
}  // namespace tandem::training
