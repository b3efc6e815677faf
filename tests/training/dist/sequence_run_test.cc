// Whole runs whose ranks, threads of this process, share each matrix and divide the rows between
// (sequence parallelism).

#include "tests/training/dist/tensor_run.h"
#include "training/plan/sharding.h"

namespace tandem::training {
namespace {

class SequenceRunTest : public TensorRunTest {
 protected:
  using TensorRunTest::TensorRunTest;
};

// Norms with and without biases, before and after layers; learned and rotated positions; tied and
// own heads; latent attention; experts.
class SequenceFamiliesTest : public testing::WithParamInterface<const char*>,
                             public SequenceRunTest {
 protected:
  SequenceFamiliesTest() : SequenceRunTest(TinyOf(GetParam())) {}
};

TEST_P(SequenceFamiliesTest, RanksHaveTheLossesOfOne) {
  const std::string family = GetParam();
  const bool is_long = family == "llama" || family == "qwen3" || family == "gpt2";
  ExpectTheLossesOfOneRank({is_long ? "steps=50" : "steps=20", "learning_rate=2e-3"}, true);
}

INSTANTIATE_TEST_SUITE_P(All, SequenceFamiliesTest,
                         testing::Values("llama", "qwen3", "gpt2", "gemma3", "gpt_neox", "minigpt",
                                         "qwen3_moe", "deepseek_v3"),
                         [](const auto& family) { return std::string(family.param); });

// Sums of products have the same tree whether ranks divide the rows or not.
TEST_F(SequenceRunTest, TheFirstStepHasTheLossOfUndividedRows) {
  const Words words = {"steps=50", "learning_rate=2e-3", "precision.compute=f32"};
  RunOn(2, Spec(Tensor(2, words)), "whole");
  RunOn(2, Spec(Divided(2, words)), "divided");
  EXPECT_NEAR(Losses("divided").at(0), Losses("whole").at(0), 1e-6);
  ExpectNear("whole", "divided", 1e-4);
}

// Options whose state, rows or program differ. Dropout draws as on one rank.
TEST_F(SequenceRunTest, OtherStatesHaveTheLossesOfOneRank) {
  const std::vector<Words> all = {
      {"opt_type=lion", "learning_rate=1e-3"},
      {"model.trainable=layers\\.0\\."},
      {"train.remat=full"},
      {"train.remat=minimal"},
      {"train.activation_save=recompute"},
      {"train.z_loss=1e-3"},
      {"world_invariant=4"},
      {"model.dropout=0.2"},
      {"neftune_noise_alpha=5"},
      {"data.packing=none"},
      {"lora.rank=4"},
      {"gradient_clipping_threshold=0.1"},
      {"eval_interval=3", "eval_dataset_path=" + (dir_.path() / "train.txt").string()}};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name = std::to_string(i);
    const Words words = Joined(all[i], {"precision.compute=f32"});
    const TrainOutcome one = Run(Spec(words), name);
    const TrainOutcome two = RunOn(2, Spec(Divided(2, words)), name + "-2");
    ExpectNear(name, name + "-2", 1e-4);
    EXPECT_NEAR(two.eval_loss, one.eval_loss, 1e-4 * std::abs(one.eval_loss)) << all[i].front();
  }
}

class SequenceExpertsTest : public SequenceRunTest {
 protected:
  SequenceExpertsTest() : SequenceRunTest(TinyOf("qwen3_moe")) {}
};

// The load of experts is that of all rows.
TEST_F(SequenceExpertsTest, LossesOnRoutersAreThoseOfOneRank) {
  const Words words = {"precision.compute=f32", "learning_rate=2e-3", "train.router_aux_loss=0.05",
                       "train.router_z_loss=0.01"};
  Run(Spec(words), "one");
  RunOn(2, Spec(Divided(2, words)), "two");
  ExpectNear("one", "two", 1e-4);
  ASSERT_EQ(Metrics("one").size(), Metrics("two").size());
  int compared = 0;
  for (size_t i = 0; i < Metrics("one").size(); ++i) {
    const nlohmann::json line = Metrics("one")[i];
    for (const auto& [key, value] : line.items()) {
      if (key.find("moe") == std::string::npos && key.find("expert") == std::string::npos) continue;
      EXPECT_NEAR(Metrics("two")[i][key], value.get<double>(), 1e-3 * value.get<double>()) << key;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_F(SequenceRunTest, Bf16RunsLearnAlike) {
  Run(Spec({"precision.compute=bf16"}), "one");
  RunOn(2, Spec(Divided(2, {"precision.compute=bf16"})), "two");
  ExpectNear("one", "two", 2e-2);
}

TEST_F(SequenceRunTest, OverlapChangesNoBit) {
  RunOn(4, Spec(Divided(2, {"parallel.overlap=false"})), "off");
  RunOn(4, Spec(Divided(2, {"parallel.overlap=true"})), "on");
  EXPECT_EQ(Losses("on"), Losses("off"));
  EXPECT_EQ(Checkpoint("on", "optim.safetensors"), Checkpoint("off", "optim.safetensors"));
}

TEST_F(SequenceRunTest, AStoppedRunResumesWithTheSameBits) {
  const TrainSpec spec = Spec(Divided(2));
  RunOn(2, spec, "whole");
  RunOn(2, spec, "parts", [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  });
  RunOn(2, spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

// Checkpoints are those of every other mesh.
TEST_F(SequenceRunTest, CheckpointsResumeWithAndWithoutDividedRows) {
  const Words common = {"precision.compute=f32", "elastic=true"};
  Run(Spec(common), "whole");
  const std::vector<std::pair<int, Words>> ways = {{1, {}}, {2, Tensor(2)}, {2, Divided(2)}};
  for (size_t from = 0; from < ways.size(); ++from) {
    const size_t to = (from + 1) % ways.size();
    const std::string name = std::to_string(from) + "-to-" + std::to_string(to);
    RunOn(ways[from].first, Spec(Joined(common, ways[from].second)), name,
          [&](const ProgressEvent& event) {
            if (event.kind == "step" && event.step == 2) stop_.request_stop();
          });
    RunOn(ways[to].first, Spec(Joined(common, ways[to].second)), name);
    ExpectNear("whole", name, 1e-4);
  }
}

// A word of the table of `tandem plan --sharding`: MiB of a class on a rank.
double OnARank(const std::string& text, const std::string& name) {
  const size_t line = text.find("\n  " + name + " ");
  if (line == std::string::npos) return -1;
  const size_t whole = text.find("MiB", line);
  return std::stod(text.substr(whole + 3));
}

TEST_F(SequenceRunTest, ThePlanCountsSmallerActivations) {
  const Words rows = {"max_target_length=256", "per_device_batch_size=4"};
  const std::string tensor = DescribeSharding(Spec(Tensor(2, rows)), 2);
  const std::string divided = DescribeSharding(Spec(Divided(2, rows)), 2);
  EXPECT_NE(divided.find("tensor 2, which divides rows"), std::string::npos) << divided;
  for (const char* name : {"activations", "loss"}) {
    EXPECT_GT(OnARank(divided, name), 0) << divided;
    EXPECT_LT(OnARank(divided, name), 0.9 * OnARank(tensor, name)) << tensor << divided;
  }
  EXPECT_EQ(OnARank(divided, "masters"), OnARank(tensor, "masters"));
}

TEST_F(SequenceRunTest, RefusesRowsThatRanksCannotDivide) {
  const std::string text =
      Refused(2, Divided(2, {"max_target_length=31", "per_device_batch_size=1"}));
  EXPECT_NE(text.find("ici_tensor_sequence_parallelism: 2 ranks cannot divide the 31 tokens"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("data.max_target_length"), std::string::npos) << text;
}

TEST_F(SequenceRunTest, RefusalsNameItsKey) {
  const std::vector<Words> all = {{"opt_type=adafactor"},
                                  {"opt_type=muon"},
                                  {"train.optimizer.state=8bit"},
                                  {"lora.rank=4", "lora.use_dora=true"},
                                  {"lora.rank=4", "lora.base_dtype=int4"},
                                  {"ici_tensor_parallelism=2"}};
  for (const Words& words : all) {
    const int ranks = words[0] == "ici_tensor_parallelism=2" ? 4 : 2;
    const std::string text = Refused(ranks, Divided(2, words));
    EXPECT_NE(text.find("ici_tensor_sequence_parallelism"), std::string::npos)
        << words.back() << ": " << text;
  }
}

}  // namespace
}  // namespace tandem::training
