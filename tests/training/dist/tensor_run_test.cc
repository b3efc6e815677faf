// Whole runs whose ranks, threads of this process, share each matrix (tensor parallelism).

#include "tests/training/dist/tensor_run.h"

#include <gtest/gtest.h>

namespace tandem::training {
namespace {

// Separate and fused projections, with and without biases; norms of heads; parallel branches; heads
// whose projections alternate; windows; experts; latent attention.
class TensorFamiliesTest : public testing::WithParamInterface<const char*>, public TensorRunTest {
 protected:
  TensorFamiliesTest() : TensorRunTest(TinyOf(GetParam())) {}
};

TEST_P(TensorFamiliesTest, RanksHaveTheLossesOfOne) {
  // A difference in the last bit may choose another expert later.
  const std::string family = GetParam();
  const bool is_long =
      family == "llama" || family == "qwen3" || family == "gemma3" || family == "gpt2";
  ExpectTheLossesOfOneRank({is_long ? "steps=50" : "steps=20", "learning_rate=2e-3"});
}

INSTANTIATE_TEST_SUITE_P(All, TensorFamiliesTest,
                         testing::Values("llama", "qwen3", "gemma3", "gpt2", "phi3", "gpt_neox",
                                         "minigpt", "qwen3_moe", "deepseek_v3"),
                         [](const auto& family) { return std::string(family.param); });

// Options whose state or program differs. Dropout draws as on one rank.
TEST_F(TensorRunTest, OtherStatesHaveTheLossesOfOneRank) {
  const std::vector<Words> all = {
      {"opt_type=lion", "learning_rate=1e-3"},
      {"train.optimizer.ema_decay=0.9", "checkpoint.export_ema=true"},
      {"model.trainable=layers\\.0\\."},
      {"train.remat=full"},
      {"train.remat=minimal"},
      {"world_invariant=4"},
      {"model.dropout=0.2"},
      {"neftune_noise_alpha=5"},
      {"lora.rank=4"},
      {"eval_interval=3", "eval_dataset_path=" + (dir_.path() / "train.txt").string()}};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name = std::to_string(i);
    const Words words = Joined(all[i], {"precision.compute=f32"});
    const TrainOutcome one = Run(Spec(words), name);
    const TrainOutcome two = RunOn(2, Spec(Tensor(2, words)), name + "-2");
    ExpectNear(name, name + "-2", 1e-4);
    EXPECT_NEAR(two.eval_loss, one.eval_loss, 1e-4 * std::abs(one.eval_loss)) << all[i].front();
  }
}

TEST_F(TensorRunTest, RanksShareMomentsOverData) {
  const Words words = {"precision.compute=f32"};
  Run(Spec(words), "one");
  RunOn(4, Spec(Tensor(2, {"precision.compute=f32", "shard_optimizer_over_data=true"})), "four");
  ExpectNear("one", "four", 1e-4);
}

// Clipping depends on the norm of the whole gradient.
TEST_F(TensorRunTest, TheGradientNormIsThatOfOneRank) {
  const Words words = {"precision.compute=f32", "gradient_clipping_threshold=0.1"};
  Run(Spec(words), "one");
  RunOn(2, Spec(Tensor(2, words)), "two");
  RunOn(4, Spec(Tensor(2, Joined(words, {"ici_fsdp_parallelism=2"}))), "four");
  ASSERT_FALSE(Metrics("one").empty());
  for (const std::string name : {"two", "four"}) {
    ASSERT_EQ(Metrics("one").size(), Metrics(name).size());
    for (size_t i = 0; i < Metrics("one").size(); ++i) {
      const nlohmann::json line = Metrics("one")[i];
      const auto norm = line.find("learning/raw_grad_norm");
      if (norm == line.end() || !norm->is_number()) continue;
      const double expected = *norm;
      EXPECT_NEAR(Metrics(name)[i]["learning/raw_grad_norm"], expected, 1e-3 * expected) << i;
    }
    ExpectNear("one", name, 1e-4);
  }
}

// bf16 rounds parts of sums, so only the beginning is near.
TEST_F(TensorRunTest, Bf16RunsLearnAlike) {
  Run(Spec({"precision.compute=bf16"}), "one");
  RunOn(2, Spec(Tensor(2, {"precision.compute=bf16"})), "two");
  ExpectNear("one", "two", 2e-2);
}

TEST_F(TensorRunTest, OverlapChangesNoBit) {
  for (const char* words : {"precision.compute=bf16", "lora.rank=4"}) {
    const std::string name = words;
    RunOn(4, Spec(Tensor(2, {words, "parallel.overlap=false"})), name + "-off");
    RunOn(4, Spec(Tensor(2, {words, "parallel.overlap=true"})), name + "-on");
    EXPECT_EQ(Losses(name + "-on"), Losses(name + "-off")) << name;
    EXPECT_EQ(Checkpoint(name + "-on", "optim.safetensors"),
              Checkpoint(name + "-off", "optim.safetensors"));
  }
}

TEST_F(TensorRunTest, AStoppedRunResumesWithTheSameBits) {
  const TrainSpec spec = Spec(Tensor(2, {"train.optimizer.ema_decay=0.9"}));
  RunOn(2, spec, "whole");
  RunOn(2, spec, "parts", [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  });
  RunOn(2, spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(TensorRunTest, AnotherTensorSizeOnAsManyRanksNeedsElastic) {
  RunOn(2, Spec(), "run", [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  });
  const auto error = ErrorOf([&] { RunOn(2, Spec(Tensor(2)), "run"); });
  ASSERT_TRUE(error);
  const std::string text = error->what();
  EXPECT_NE(text.find("ici_tensor_parallelism 1, now 2"), std::string::npos) << text;
}

class TensorGptOssTest : public TensorRunTest {
 protected:
  TensorGptOssTest() : TensorRunTest(TinyOf("gpt_oss")) {}
};

// The first rank alone adds these biases; the others take part in the sums of its backward pass.
TEST_F(TensorGptOssTest, BiasesOfExpertsTrainAlone) {
  ExpectTheLossesOfOneRank({R"(model.trainable=experts\.\d+\.down_proj\.bias)", "steps=4"});
}

// Every mesh writes whole tensors, which every other one reads.
TEST_F(TensorRunTest, CheckpointsResumeOnEveryMesh) {
  struct Way {
    int ranks;
    Words words;
  };
  const std::vector<Way> ways = {
      {1, {}},
      {2, Tensor(2)},
      {4, Tensor(2, {"ici_fsdp_parallelism=2", "checkpoint.shard_bytes=8192"})},
      {4, Tensor(2, {"shard_optimizer_over_data=true"})}};
  const Words common = {"precision.compute=f32", "elastic=true", "train.optimizer.ema_decay=0.9"};
  Run(Spec(common), "whole");
  for (size_t from = 0; from < ways.size(); ++from) {
    const std::string saved = "from-" + std::to_string(from);
    RunOn(ways[from].ranks, Spec(Joined(common, ways[from].words)), saved,
          [&](const ProgressEvent& event) {
            if (event.kind == "step" && event.step == 2) stop_.request_stop();
          });
    for (size_t to = 0; to < ways.size(); ++to) {
      const std::string name = saved + "-to-" + std::to_string(to);
      std::filesystem::copy(dir_.path() / saved, dir_.path() / name,
                            std::filesystem::copy_options::recursive);
      RunOn(ways[to].ranks, Spec(Joined(common, ways[to].words)), name);
      ExpectNear("whole", name, 1e-4);
    }
  }
}

// Nothing is trained: a checkpoint of parts has the bits of the loaded weights.
TEST_F(TensorRunTest, WholeTensorsAreWrittenAsTheyWereRead) {
  for (const char* dtype : {"precision.compute=f32", "precision.compute=bf16"}) {
    const Words words = {dtype, "learning_rate=0", "steps=1"};
    const std::string name = std::string(dtype).substr(18);
    Run(Spec(words), name);
    RunOn(2, Spec(Tensor(2, words)), name + "-2");
    RunOn(4, Spec(Tensor(2, Joined(words, {"ici_fsdp_parallelism=2"}))), name + "-4");
    EXPECT_EQ(Weights(name + "-2"), Weights(name));
    EXPECT_EQ(Weights(name + "-4"), Weights(name));
  }
}

// Fresh weights and adapters are those of one rank, whatever the parts.
TEST_F(TensorRunTest, FreshWeightsAreThoseOfOneRank) {
  const Words words = {"lora.rank=4", "learning_rate=0", "steps=1"};
  const auto adapter = [&](const std::string& name) {
    return engine::ReadWholeFile(dir_.path() / name / "adapter" / "adapter_model.safetensors",
                                 1 << 28);
  };
  Run(Spec(words), "one");
  RunOn(2, Spec(Tensor(2, words)), "two");
  EXPECT_EQ(adapter("two"), adapter("one"));
}

// Widths of whole blocks for each rank.
class TensorBlocksTest : public TensorRunTest {
 protected:
  TensorBlocksTest() : TensorRunTest(Wide()) {}

  static bench::RandomModelSpec Wide() {
    bench::RandomModelSpec model = TinyOf("qwen3");
    model.config.hidden_dim = 64;
    model.config.ffn_dim = 128;
    model.config.attention.n_heads = 4;
    model.config.attention.n_kv_heads = 2;
    model.config.attention.head_dim = 32;
    model.config.attention.scale = 1 / std::sqrt(32.0f);
    return model;
  }
};

TEST_F(TensorBlocksTest, AdaptersTrainOnPartsOfABaseInBlocks) {
  for (const char* base : {"int8", "int4"}) {
    const Words words = {"lora.rank=4", std::string("lora.base_dtype=") + base};
    Run(Spec(words), base);
    RunOn(2, Spec(Tensor(2, words)), std::string(base) + "-2");
    ExpectNear(base, std::string(base) + "-2", 2e-2);
    RunOn(2, Spec(Divided(2, words)), std::string(base) + "-divided");
    ExpectNear(base, std::string(base) + "-divided", 2e-2);
    EXPECT_LT(Losses(std::string(base) + "-2").at(kSteps - 1),
              Losses(std::string(base) + "-2").at(0));
  }
}

TEST_F(TensorRunTest, RefusesBlocksThatAPartWouldCut) {
  const std::string text = Refused(2, Tensor(2, {"lora.rank=4", "lora.base_dtype=int4"}));
  EXPECT_NE(text.find("are no whole blocks of 32"), std::string::npos) << text;
  EXPECT_NE(text.find("lora.base_dtype to bf16"), std::string::npos) << text;
}

TEST_F(TensorRunTest, RefusesWhatNeedsWholeMatrices) {
  for (const char* word : {"opt_type=adafactor", "opt_type=muon", "train.optimizer.state=8bit"}) {
    const std::string text = Refused(2, Tensor(2, {word}));
    EXPECT_NE(text.find("ici_tensor_parallelism"), std::string::npos) << word << ": " << text;
  }
}

TEST_F(TensorRunTest, RefusesAdaptersOfOtherForms) {
  for (const std::string key : {"lora.use_dora", "lora.embeddings", "lora.modules_to_save"}) {
    const std::string value = key == "lora.modules_to_save" ? "=embed_tokens" : "=true";
    const std::string text = Refused(2, Tensor(2, {"lora.rank=4", key + value}));
    EXPECT_NE(text.find("ici_tensor_parallelism"), std::string::npos) << key << ": " << text;
    EXPECT_NE(text.find(key), std::string::npos) << text;
  }
}

TEST_F(TensorRunTest, RefusesHeadsThatRanksCannotShare) {
  const std::string text = Refused(3, Tensor(3));
  EXPECT_NE(text.find("ici_tensor_parallelism: family llama: 3 ranks cannot share"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("num_attention_heads"), std::string::npos) << text;
}

// Families of which ranks cannot share a part, with words of the refusal.
struct RefusedFamily {
  const char* family;
  const char* words;
};
class TensorRefusedTest : public testing::WithParamInterface<RefusedFamily>, public TensorRunTest {
 protected:
  TensorRefusedTest() : TensorRunTest(TinyOf(GetParam().family)) {}
};

TEST_P(TensorRefusedTest, SaysWhichPart) {
  const std::string text = Refused(2, Tensor(2));
  EXPECT_NE(text.find(std::string("family ") + GetParam().family), std::string::npos) << text;
  EXPECT_NE(text.find(GetParam().words), std::string::npos) << text;
  EXPECT_NE(text.find("ici_fsdp_parallelism"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(All, TensorRefusedTest,
                         testing::Values(RefusedFamily{"qwen3_next", "recurrent state"},
                                         RefusedFamily{"olmo2", "needs all heads"},
                                         RefusedFamily{"gemma3n", "streams"},
                                         RefusedFamily{"mamba2", "recurrent state"}),
                         [](const auto& one) { return std::string(one.param.family); });

}  // namespace
}  // namespace tandem::training
