// Whole runs on several ranks, which are threads of this process.

#include "tests/training/dist/ranks_run.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "training/run/run_reference.h"

namespace tandem::training {
namespace {

TEST_F(RanksRunTest, RanksShareTheStepOfOneRank) {
  const TrainSpec spec = Spec({"precision.compute=f32"});
  Run(spec, "one");
  for (const int size : {2, 4}) {
    const std::string name = std::to_string(size);
    RunOn(size, spec, name);
    ExpectNear("one", name, 1e-5);
    for (const auto& line : Metrics(name)) {
      if (line.contains("learning/total_weights")) continue;
    }
    EXPECT_EQ(Metrics(name).back()["step"], Metrics("one").back()["step"]);
  }
  EXPECT_NE(Losses("one").at(0), Losses("one").at(kSteps - 1)) << "nothing was learned";
}

TEST_F(RanksRunTest, WorldInvariantRunsHaveTheSameBits) {
  for (const char* dtype : {"precision.compute=f32", "precision.compute=bf16"}) {
    const std::string prefix = std::string(dtype).substr(18);
    const TrainSpec spec = Spec({dtype, "world_invariant=4"});
    Run(spec, prefix + "-1");
    for (const int size : {1, 2, 4}) {
      const std::string name = prefix + "-on-" + std::to_string(size);
      RunOn(size, spec, name);
      EXPECT_EQ(Losses(name), Losses(prefix + "-1")) << name;
      EXPECT_EQ(Weights(name), Weights(prefix + "-1")) << name;
    }
  }
}

// Samples of different lengths without packing: ranks hold different numbers of tokens.
TEST_F(RanksRunTest, UnequalTokensPerRankGiveTheMeanOverAllTokens) {
  std::ofstream text(dir_.path() / "train.txt");
  for (int i = 0; i < 60; ++i) {
    text << "One";
    for (int word = 0; word < i % 7; ++word) text << " and one more";
    text << ".\n<|endoftext|>\n";
  }
  text.close();
  const TrainSpec spec = Spec({"precision.compute=f32", "data.packing=none"});
  Run(spec, "one");
  RunOn(2, spec, "two");
  RunOn(4, spec, "four");
  RunOn(4, Spec({"precision.compute=f32", "data.packing=none", "ici_fsdp_parallelism=2"}), "fsdp");
  ExpectNear("one", "two", 1e-6);
  ExpectNear("one", "four", 1e-6);
  ExpectNear("one", "fsdp", 1e-6);
}

TEST_F(RanksRunTest, RowsThatRanksCannotShareAreRefused) {
  const TrainSpec spec = Spec();
  const auto faults = OnRanks(3, [&](Collectives& ranks) {
    JobContext context;
    context.dir = dir_.path() / "three";
    RunTraining(spec, context, &ranks);
  });
  for (const auto& fault : faults) {
    ASSERT_TRUE(fault);
    EXPECT_NE(std::string(ToError(fault).what()).find("per_device_batch_size"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "three"));
  const auto error = ErrorOf([&] { SplitStep(Spec({"world_invariant=3"}), {}); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("power of two"), std::string::npos);
  EXPECT_TRUE(ErrorOf([&] { SplitStep(Spec({"world_invariant=16"}), {}); }));  // 8 rows
  EXPECT_TRUE(ErrorOf([&] { SplitStep(Spec({"world_invariant=2"}), {.data = 4}); }));
}

TEST_F(RanksRunTest, RanksWithDifferentSpecsAreRefused) {
  const auto faults = OnRanks(2, [&](Collectives& ranks) {
    JobContext context;
    context.dir = dir_.path() / "different";
    RunTraining(Spec({"learning_rate=0.00" + std::to_string(ranks.rank() + 1)}), context, &ranks);
  });
  for (const auto& fault : faults) {
    ASSERT_TRUE(fault);
    EXPECT_NE(std::string(ToError(fault).what()).find("the ranks differ in the spec"),
              std::string::npos);
  }
}

TEST_F(RanksRunTest, AStoppedRunResumesWithTheSameBits) {
  const TrainSpec spec = Spec({"train.optimizer.state=8bit"});
  RunOn(2, spec, "whole");
  const TrainOutcome stopped = RunOn(2, spec, "parts", [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  });
  EXPECT_EQ(stopped.status, TrainOutcome::Status::kStopped);
  EXPECT_EQ(stopped.step, 3);
  RunOn(2, spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(RanksRunTest, OverlapChangesNoBit) {
  for (const char* words :
       {"precision.compute=bf16", "lora.rank=4", "gradient_accumulation_steps=1"}) {
    const std::string name = words;
    RunOn(2, Spec({words, "parallel.overlap=false"}), name + "-off");
    RunOn(2, Spec({words, "parallel.overlap=true", "parallel.bucket_bytes=4096"}), name + "-on");
    EXPECT_EQ(Losses(name + "-on"), Losses(name + "-off")) << name;
    EXPECT_EQ(Checkpoint(name + "-on", "optim.safetensors"),
              Checkpoint(name + "-off", "optim.safetensors"));
  }
}

TEST_F(RanksRunTest, ShardedMomentsChangeNoBit) {
  for (const char* words : {"precision.compute=f32", "precision.compute=bf16",
                            "train.optimizer.state=8bit", "lora.rank=4"}) {
    const std::string name = words;
    const auto spec = [&](const std::string& more) {
      return Spec({words, "world_invariant=4", more});
    };
    RunOn(2, spec("elastic=false"), name + "-whole");
    for (const int size : {2, 4}) {
      const std::string run = name + "-" + std::to_string(size);
      RunOn(size, spec("shard_optimizer_over_data=true"), run);
      EXPECT_EQ(Losses(run), Losses(name + "-whole")) << run;
      EXPECT_EQ(Checkpoint(run, "optim.safetensors"),
                Checkpoint(name + "-whole", "optim.safetensors"))
          << run;
    }
  }
}

TEST_F(RanksRunTest, ShardedCheckpointsResumeOnAnyNumberOfRanks) {
  const auto stop_after_two = [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  };
  const std::vector<std::string> words = {"world_invariant=4", "elastic=true",
                                          "train.optimizer.state=8bit"};
  std::vector<std::string> sharded = words;
  sharded.push_back("shard_optimizer_over_data=true");
  RunOn(1, Spec(words), "whole");
  for (const auto& [before, after] : {std::pair{4, 2}, std::pair{2, 4}, std::pair{4, 1}}) {
    const std::string name = std::to_string(before) + "-" + std::to_string(after);
    RunOn(before, Spec(sharded), name, stop_after_two);
    RunOn(after, Spec(sharded), name);
    EXPECT_EQ(Losses(name), Losses("whole")) << name;
    EXPECT_EQ(Weights(name), Weights("whole")) << name;
  }
}

TEST_F(RanksRunTest, AdaptersWithDoraAreWrittenTogetherAsByOneRank) {
  for (const char* sharded : {"checkpoint.sharded=false", "checkpoint.sharded=true"}) {
    RunOn(2, Spec({"lora.rank=4", "lora.use_dora=true", sharded}), sharded);
  }
  EXPECT_EQ(Checkpoint("checkpoint.sharded=true", "adapter_model.safetensors"),
            Checkpoint("checkpoint.sharded=false", "adapter_model.safetensors"));
}

TEST_F(RanksRunTest, AnotherNumberOfRanksNeedsElastic) {
  const auto stop_after_two = [&](const ProgressEvent& event) {
    if (event.kind == "step" && event.step == 2) stop_.request_stop();
  };
  RunOn(4, Spec({"world_invariant=4"}), "whole");
  RunOn(2, Spec({"world_invariant=4"}), "parts", stop_after_two);
  const auto error = ErrorOf([&] { RunOn(4, Spec({"world_invariant=4"}), "parts"); });
  ASSERT_TRUE(error);
  RunOn(4, Spec({"world_invariant=4", "elastic=true"}), "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(RanksRunTest, EvaluationsHaveTheBitsOfOneRank) {
  const TrainSpec spec = Spec({"world_invariant=2", "eval_interval=3",
                               "eval_dataset_path=" + (dir_.path() / "train.txt").string()});
  const TrainOutcome one = Run(spec, "one");
  const TrainOutcome two = RunOn(2, spec, "two");
  EXPECT_GT(one.eval_loss, 0);
  EXPECT_EQ(one.eval_loss, two.eval_loss);
  EXPECT_EQ(one.best_eval_loss, two.best_eval_loss);
}

TEST_F(RanksRunTest, AdaptersOnPlainAndQuantisedBases) {
  for (const char* base : {"lora.base_dtype=auto", "lora.base_dtype=int4"}) {
    const std::string prefix = std::string(base).substr(16);
    const TrainSpec spec = Spec({base, "lora.rank=4", "world_invariant=4"});
    Run(spec, prefix + "-1");
    RunOn(2, spec, prefix + "-2");
    RunOn(4, spec, prefix + "-4");
    EXPECT_EQ(Losses(prefix + "-1"), Losses(prefix + "-2"));
    EXPECT_EQ(Losses(prefix + "-1"), Losses(prefix + "-4"));
  }
}

// The base's embedding of '~' is NaN, and only one rank gets the row that contains it.
class PoisonedRanksTest : public RanksRunTest {
 protected:
  PoisonedRanksTest() : RanksRunTest(UntiedLlama()) {
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 60; ++i) {
      text << "The cat number " << i << (i == 26 ? "~" : "") << " ran.\n<|endoftext|>\n";
    }
  }

  static bench::RandomModelSpec UntiedLlama() {
    bench::RandomModelSpec model = TinyLlama();
    model.config.tied_embeddings = false;
    return model;
  }
};

TEST_F(PoisonedRanksTest, AllRanksSkipOrRollBackTogether) {
  const std::string base = Poisoned();
  for (const char* way : {"train.on_nan=skip", "train.on_nan=rollback"}) {
    const std::string name = std::string(way).substr(13);
    std::vector<std::string> words = {way,
                                      "world_invariant=4",
                                      "data.packing=none",
                                      "data.shuffle=false",
                                      "checkpoint.period=2",
                                      "shard_optimizer_over_data=true"};
    TrainSpec spec = Spec(words);
    spec.model.load_parameters_path = base.substr(base.find('=') + 1);
    const TrainOutcome one = Run(spec, name + "-1");
    events_.clear();
    const TrainOutcome two = RunOn(2, spec, name + "-2");
    EXPECT_EQ(CountEvents("warning", name == "skip" ? "is skipped" : "rollback 1"), 1);
    EXPECT_EQ(two.step, one.step);
    EXPECT_EQ(Losses(name + "-2"), Losses(name + "-1"));
    spec.parallel.shard_optimizer = false;
    spec.parallel.mesh.fsdp.ici = 2;
    RunOn(2, spec, name + "-fsdp");
    EXPECT_EQ(Losses(name + "-fsdp"), Losses(name + "-1"));
  }
}

// Another family, with chats and pairs of answers.
class GemmaRanksTest : public RanksRunTest {
 protected:
  GemmaRanksTest() : RanksRunTest(TinyGemma()) {
    std::ofstream(dir_.path() / "chat.jinja")
        << "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}";
    std::ofstream chats(dir_.path() / "chats.jsonl");
    std::ofstream pairs(dir_.path() / "pairs.jsonl");
    for (int i = 0; i < 24; ++i) {
      const std::string more(static_cast<size_t>(i % 5) * 3, '!');
      const std::string question =
          R"({"role":"user","content":"Number )" + std::to_string(i) + R"(?"})";
      chats << R"({"messages":[)" << question << R"(,{"role":"assistant","content":"A dog)" << more
            << R"("}]})"
            << "\n";
      pairs << R"({"input":{"messages":[)" << question
            << R"(]},"preferred_output":[{"role":"assistant","content":"A dog)" << more
            << R"("}],"non_preferred_output":[{"role":"assistant","content":"A cat"}]})"
            << "\n";
    }
  }

  static bench::RandomModelSpec TinyGemma() {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig("gemma2");
    model.with_tokenizer = true;
    return model;
  }

  TrainSpec ChatSpec(const std::string& kind, const std::string& file,
                     const std::vector<std::string>& more) const {
    std::vector<std::string> words = {
        "kind=" + kind,
        "model.chat_template=" + (dir_.path() / "chat.jinja").string(),
        "data.train=" + (dir_.path() / file).string(),
        "data.eval=" + (dir_.path() / file).string(),
        "max_target_length=64",
        "eval_interval=2"};
    words.insert(words.end(), more.begin(), more.end());
    return Spec(words);
  }

  // With `fsdp` the ranks share the parameters, two each.
  void ExpectTheSameBits(const TrainSpec& spec, bool fsdp = false) {
    const TrainOutcome one = Run(spec, "one");
    TrainSpec shared = spec;
    if (fsdp) shared.parallel.mesh.fsdp.ici = 2;
    for (const int size : {2, 4}) {
      const std::string name = std::to_string(size);
      const TrainOutcome outcome = RunOn(size, shared, name);
      EXPECT_EQ(Losses(name), Losses("one"));
      EXPECT_EQ(outcome.eval_loss, one.eval_loss);
    }
    EXPECT_NE(Losses("one").at(0), Losses("one").at(kSteps - 1)) << "nothing was learned";
  }
};

TEST_F(GemmaRanksTest, Chats) {
  ExpectTheSameBits(ChatSpec("train.sft", "chats.jsonl", {"world_invariant=4"}));
}

TEST_F(GemmaRanksTest, PairsOfAnswers) {
  ExpectTheSameBits(ChatSpec("train.dpo", "pairs.jsonl", {"world_invariant=4"}));
}

TEST_F(GemmaRanksTest, PairsOfAnswersWithAnAdapterAndShards) {
  ExpectTheSameBits(ChatSpec(
      "train.dpo", "pairs.jsonl",
      {"world_invariant=4", "lora.rank=4", "lora.dropout=0.1", "shard_optimizer_over_data=true"}));
}

TEST_F(GemmaRanksTest, ChatsWithSharedParameters) {
  ExpectTheSameBits(ChatSpec("train.sft", "chats.jsonl", {"world_invariant=4"}), true);
}

TEST_F(GemmaRanksTest, PairsOfAnswersWithSharedParameters) {
  ExpectTheSameBits(ChatSpec("train.dpo", "pairs.jsonl", {"world_invariant=4"}), true);
}

TEST_F(GemmaRanksTest, PairsOfAnswersWithASharedAdapter) {
  ExpectTheSameBits(ChatSpec("train.dpo", "pairs.jsonl",
                             {"world_invariant=4", "lora.rank=4", "lora.dropout=0.1"}),
                    true);
}

// The reference has the split of the policy, so that the first loss is log 2 here too.
TEST_F(GemmaRanksTest, PairsOfAnswersWithSharedMatrices) {
  const TrainSpec spec = ChatSpec("train.dpo", "pairs.jsonl", {"precision.compute=f32"});
  Run(spec, "one");
  TrainSpec split = spec;
  split.parallel.mesh.tensor.ici = 2;
  TrainSpec divided = spec;
  divided.parallel.mesh.tensor_sequence.ici = 2;
  for (const int size : {2, 4}) {
    for (const TrainSpec* one : {&split, &divided}) {
      const std::string name = std::to_string(size) + (one == &split ? "" : "-divided");
      RunOn(size, *one, name);
      EXPECT_EQ(Losses(name).at(0), Losses("one").at(0));
      ExpectNear("one", name, 1e-3);
    }
  }
}

// Each rank computes half of the pairs, so that none waits for the other's pass over all of them.
TEST_F(GemmaRanksTest, RanksShareTheReferenceOfPairs) {
  const auto prepare = [&](int64_t fsdp, int64_t ranks, const std::string& name, Collectives* group,
                           Trace* trace) {
    TrainSpec spec = ChatSpec("train.dpo", "pairs.jsonl", {});
    spec.step_shape = StepShape{2, 4, ranks, fsdp};
    if (group != nullptr) group->Arrange(static_cast<int>(fsdp));
    JobContext context;
    context.dir = dir_.path() / name;
    RunParts parts(spec, context, group);
    ValidationSet validation(spec, parts.files, parts.pool);
    parts.trainer.set_trace(trace);
    const auto quiet = [](const std::string&) {};
    const ReferenceJob job{.parts = parts,
                           .validation = &validation,
                           .dir = context.dir,
                           .cache_dir = {},
                           .resumes = false,
                           .stop = {},
                           .report = quiet,
                           .warn = quiet};
    EXPECT_TRUE(PrepareReference(job));
    std::vector<PairLogProbs> all = parts.reference;
    for (const MicroBatch& batch : validation.batches()) {
      for (const PairRows& pair : batch.pairs) all.push_back(pair.reference);
    }
    EXPECT_FALSE(PrepareReference(job)) << "it is on disk";
    return all;
  };
  const auto spans = [](const Trace& trace) {
    const std::string json = trace.ChromeJson();
    size_t n = 0;
    for (size_t at = 0; (at = json.find("\"dur\"", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  Trace whole;
  const std::vector<PairLogProbs> one = prepare(1, 1, "one", nullptr, &whole);
  ASSERT_EQ(one.size(), 48u);
  for (const int fsdp : {1, 2}) {
    std::array<Trace, 2> traces;
    MustWorkOnRanks(2, [&](Collectives& ranks) {
      const auto two = prepare(fsdp, 2, "two" + std::to_string(fsdp), &ranks,
                               &traces[static_cast<size_t>(ranks.rank())]);
      ASSERT_EQ(two.size(), one.size());
      EXPECT_EQ(std::memcmp(two.data(), one.data(), one.size() * sizeof(PairLogProbs)), 0);
    });
    EXPECT_GT(spans(traces[0]), 0u);
    EXPECT_EQ(spans(traces[0]), spans(traces[1])) << fsdp;
    if (fsdp > 1) continue;  // other spans too
    EXPECT_EQ(spans(traces[1]), spans(whole) / 2);
  }
}

}  // namespace
}  // namespace tandem::training
