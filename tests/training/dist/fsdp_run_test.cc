// Whole runs whose ranks, threads of this process, share the parameters (FSDP).

#include <gtest/gtest.h>

#include <cstring>

#include "engine/formats/model_dir.h"
#include "tests/training/dist/ranks_run.h"
#include "training/setup/memory_needs.h"
#include "training/setup/run_parts.h"

namespace tandem::training {
namespace {

class FsdpRunTest : public RanksRunTest {
 protected:
  using RanksRunTest::RanksRunTest;

  // As the spec of RanksRunTest, with `fsdp` ranks that share the parameters.
  TrainSpec FsdpSpec(int fsdp, std::vector<std::string> more = {}) const {
    more.push_back("ici_fsdp_parallelism=" + std::to_string(fsdp));
    return Spec(more);
  }
};

TEST_F(FsdpRunTest, RanksShareParametersAndRows) {
  const std::vector<std::string> f32 = {"precision.compute=f32", "steps=50"};
  Run(Spec(f32), "one");
  for (const auto& [ranks, fsdp] : {std::pair{2, 2}, std::pair{4, 4}, std::pair{4, 2}}) {
    const std::string name = std::to_string(ranks) + "-" + std::to_string(fsdp);
    RunOn(ranks, FsdpSpec(fsdp, f32), name);
    ExpectNear("one", name, 1e-5);
  }
}

// Other families: fused projections and biases, and experts.
class FsdpGptTest : public FsdpRunTest {
 protected:
  FsdpGptTest() : FsdpRunTest(Tiny("gpt2")) {}
  explicit FsdpGptTest(const bench::RandomModelSpec& model) : FsdpRunTest(model) {}

  static bench::RandomModelSpec Tiny(const char* family) {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig(family);
    model.with_tokenizer = true;
    return model;
  }

  void ExpectTheLossesOfOneRank() {
    const std::vector<std::string> f32 = {"precision.compute=f32", "steps=50"};
    Run(Spec(f32), "one");
    for (const int ranks : {2, 4}) {
      const std::string name = std::to_string(ranks);
      RunOn(ranks, FsdpSpec(ranks, f32), name);
      ExpectNear("one", name, 1e-5);
    }
  }
};

class FsdpExpertsTest : public FsdpGptTest {
 protected:
  FsdpExpertsTest() : FsdpGptTest(Tiny("qwen3_moe")) {}
};

TEST_F(FsdpGptTest, RanksShareParametersAndRows) { ExpectTheLossesOfOneRank(); }

TEST_F(FsdpExpertsTest, RanksShareParametersAndRows) { ExpectTheLossesOfOneRank(); }

TEST_F(FsdpRunTest, WorldInvariantRunsHaveTheSameBits) {
  for (const char* dtype : {"precision.compute=f32", "precision.compute=bf16"}) {
    const std::string prefix = std::string(dtype).substr(18);
    Run(Spec({dtype, "world_invariant=8"}), prefix);
    for (const auto& [ranks, fsdp] :
         {std::pair{2, 2}, std::pair{4, 4}, std::pair{4, 2}, std::pair{8, 2}}) {
      const std::string name = prefix + std::to_string(ranks) + "-" + std::to_string(fsdp);
      RunOn(ranks, FsdpSpec(fsdp, {dtype, "world_invariant=8"}), name);
      EXPECT_EQ(Losses(name), Losses(prefix)) << name;
      EXPECT_EQ(Weights(name), Weights(prefix)) << name;
      for (const char* file : {"optim.safetensors", "model.safetensors"}) {
        EXPECT_EQ(Checkpoint(name, file), Checkpoint(prefix, file)) << name << " " << file;
      }
    }
  }
}

TEST_F(FsdpRunTest, OverlapChangesNoBit) {
  for (const char* words : {"precision.compute=bf16", "lora.rank=4", "train.remat=full"}) {
    const std::string name = words;
    RunOn(2, FsdpSpec(2, {words, "parallel.overlap=false"}), name + "-off");
    RunOn(2, FsdpSpec(2, {words, "parallel.overlap=true"}), name + "-on");
    EXPECT_EQ(Losses(name + "-on"), Losses(name + "-off")) << name;
    EXPECT_EQ(Checkpoint(name + "-on", "optim.safetensors"),
              Checkpoint(name + "-off", "optim.safetensors"));
  }
}

// Options whose state or program differs.
TEST_F(FsdpRunTest, OtherStatesHaveTheBitsOfOneRank) {
  const std::vector<std::vector<std::string>> all = {
      {"train.optimizer.state=8bit"},
      {"train.optimizer.ema_decay=0.9", "checkpoint.export_ema=true"},
      {"opt_type=lion"},
      {"model.trainable=layers\\.0\\."},
      {"train.remat=full", "gradient_accumulation_steps=1", "per_device_batch_size=8"},
      {"lora.rank=4", "lora.base_dtype=int4", "lora.dropout=0.1"},
      {"lora.rank=4", "lora.embeddings=true"},
      {"lora.rank=4", "lora.modules_to_save=[embed_tokens,lm_head,norm]"},
      {"lora.rank=4", "lora.use_dora=true", "lora.dropout=0.1"},
      {"lora.rank=4", "lora.use_dora=true", "lora.base_dtype=int8", "lora.modules_to_save=lm_head"},
      {"eval_interval=3", "eval_dataset_path=" + (dir_.path() / "train.txt").string()}};
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> words = all[i];
    words.push_back("world_invariant=4");
    const std::string name = std::to_string(i);
    const TrainOutcome one = Run(Spec(words), name);
    const TrainOutcome four = RunOn(4, FsdpSpec(2, words), name + "-4");
    EXPECT_EQ(Losses(name + "-4"), Losses(name)) << all[i].front();
    EXPECT_EQ(four.eval_loss, one.eval_loss);
    EXPECT_EQ(Checkpoint(name + "-4", "optim.safetensors"), Checkpoint(name, "optim.safetensors"))
        << all[i].front();
  }
}

TEST_F(FsdpRunTest, AStoppedRunResumesWithTheSameBits) {
  const TrainSpec spec = FsdpSpec(2, {"train.optimizer.state=8bit"});
  RunOn(2, spec, "whole");
  RunOn(2, spec, "parts", [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  });
  RunOn(2, spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

// Every mesh writes what every other one reads. Files of a few kilobytes, so that all ranks write.
TEST_F(FsdpRunTest, CheckpointsResumeOnEveryMesh) {
  struct Way {
    int ranks;
    std::vector<std::string> words;
  };
  const std::vector<Way> ways = {{1, {}},
                                 {2, {"checkpoint.sharded=true"}},
                                 {4, {"shard_optimizer_over_data=true", "checkpoint.sharded=true"}},
                                 {2, {"ici_fsdp_parallelism=2"}},
                                 {4, {"ici_fsdp_parallelism=4"}},
                                 {4, {"ici_fsdp_parallelism=2"}}};
  const auto spec = [&](const Way& way) {
    std::vector<std::string> words = {"world_invariant=4", "elastic=true",
                                      "checkpoint.shard_bytes=8192"};
    words.insert(words.end(), way.words.begin(), way.words.end());
    return Spec(words);
  };
  RunOn(1, Spec({"world_invariant=4"}), "whole");
  for (size_t from = 0; from < ways.size(); ++from) {
    const std::string saved = "from-" + std::to_string(from);
    RunOn(ways[from].ranks, spec(ways[from]), saved, [&](const ProgressEvent& event) {
      if (event.kind == "step" && event.step == 2) stop_.request_stop();
    });
    for (size_t to = 0; to < ways.size(); ++to) {
      const std::string name = saved + "-to-" + std::to_string(to);
      std::filesystem::copy(dir_.path() / saved, dir_.path() / name,
                            std::filesystem::copy_options::recursive);
      RunOn(ways[to].ranks, spec(ways[to]), name);
      EXPECT_EQ(Losses(name), Losses("whole")) << name;
    }
  }
  // Several files with an index, which every reader of models takes.
  const auto model = engine::ModelDir::Open(dir_.path() / "from-4-to-4" / "hf");
  const auto whole = engine::ModelDir::Open(dir_.path() / "whole" / "hf");
  ASSERT_EQ(model.tensor_names(), whole.tensor_names());
  for (const std::string& name : whole.tensor_names()) {
    const engine::ConstTensorView* ours = model.FindTensor(name);
    const engine::ConstTensorView* theirs = whole.FindTensor(name);
    ASSERT_EQ(ours->bytes(), theirs->bytes());
    EXPECT_EQ(std::memcmp(ours->data, theirs->data, ours->bytes()), 0) << name;
  }
  EXPECT_TRUE(
      std::filesystem::exists(dir_.path() / "from-4-to-4" / "hf" / "model.safetensors.index.json"));
}

// The gathers of FSDP follow a program's steps, so all ranks must record the same.
TEST_F(FsdpRunTest, RanksWithOtherNumbersOfThreadsRecordOneProgram) {
  const auto spec_of = [&](int64_t threads, std::vector<std::string> more) {
    TrainSpec spec = FsdpSpec(2, std::move(more));
    spec.resources.threads = threads;
    spec.step_shape = SplitStep(spec, {.fsdp = 2});
    return spec;
  };
  const ModelFiles files = LoadModelFiles(spec_of(2, {}));
  const auto needs = [&](const char* remat) {
    return FindMemoryNeeds(spec_of(2, {remat}), files).total_bytes();
  };
  // All activations fit beside the scratch memory of one thread, but not beside that of two.
  const std::vector<std::string> words = {
      "train.remat=auto",
      "resources.memory_max_bytes=" +
          std::to_string((needs("train.remat=full") + needs("train.remat=none")) / 2)};
  const auto bytes = [&](int64_t threads) {
    return FindMemoryNeeds(spec_of(threads, words), files).program.arena_bytes;
  };
  ASSERT_LT(bytes(2), bytes(1));
  MustWorkOnRanks(2, [&](Collectives& ranks) {
    ranks.Arrange(2, 1);
    const TrainSpec spec = spec_of(1 + ranks.rank(), words);
    JobContext context;
    context.dir = dir_.path() / "run";
    const RunParts parts(spec, context, &ranks);
    EXPECT_EQ(parts.trainer.program().arena_bytes, bytes(2));
  });
}

TEST_F(FsdpRunTest, RefusesWhatNeedsWholeMatrices) {
  for (const char* word :
       {"opt_type=adafactor", "opt_type=muon", "shard_optimizer_over_data=true"}) {
    const auto faults = OnRanks(2, [&](Collectives& ranks) {
      JobContext context;
      context.dir = dir_.path() / "refused";
      RunTraining(FsdpSpec(2, {word}), context, &ranks);
    });
    for (const auto& fault : faults) {
      ASSERT_TRUE(fault) << word;
      EXPECT_NE(std::string(ToError(fault).what()).find("ici_fsdp_parallelism"), std::string::npos)
          << ToError(fault).what();
    }
  }
}

}  // namespace
}  // namespace tandem::training
