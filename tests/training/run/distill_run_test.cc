// kind train.distill: whole runs of a tiny model with the server of a teacher in this process.

#include <cstdlib>
#include <stdexcept>

#include "engine/base/error.h"
#include "tests/training/teacher/stub_teacher.h"
#include "tests/training/tiny_run.h"
#include "training/run/evaluate.h"
#include "training/run/profile.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class DistillRunTest : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::vector<std::string>& words = {}, const std::string& kind = "distill") {
    std::vector<std::string> all = {"kind=" + kind,
                                    "load_parameters_path=" + (dir_.path() / "base").string(),
                                    "data.train=" + (dir_.path() / "train.txt").string(),
                                    "max_target_length=64",
                                    "steps=8",
                                    "per_device_batch_size=2",
                                    "gradient_accumulation_steps=2",
                                    "learning_rate=1e-2",
                                    "resources.threads=1",
                                    "distill.top_k=5"};
    if (kind == "distill") all.push_back("distill.teacher_url=" + teacher_.url());
    all.insert(all.end(), words.begin(), words.end());
    return ParseTrainSpec("{}", "spec", all);
  }

  std::vector<double> Figures(const std::string& run, const char* name) const {
    std::vector<double> values;
    for (const auto& line : Metrics(run)) {
      if (line.contains(name)) values.push_back(line[name]);
    }
    return values;
  }

  template <class Action>
  std::string FaultOf(ErrorCode code, const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no fault";
    return "";
  }

  std::string File(const std::string& name) const {
    return engine::ReadWholeFile(dir_.path() / name, 1 << 28);
  }

  StubTeacher teacher_;
};

TEST_F(DistillRunTest, TheStudentComesNearerToTheTeacher) {
  Run(Spec({"steps=30", "distill.alpha=1", "distill.temperature=2", "eval_interval=15",
            "data.eval=" + (dir_.path() / "train.txt").string()}));
  const auto soft = Figures("run", "distill/soft_loss");
  ASSERT_EQ(soft.size(), 30u);
  EXPECT_LT(soft.back(), soft.front() / 3);
  EXPECT_EQ(Figures("run", "learning/loss"), soft) << "alpha is 1";
  const auto eval = Figures("run", "eval/distill/soft_loss");
  ASSERT_EQ(eval.size(), 2u);
  EXPECT_LT(eval[1], eval[0]);
  EXPECT_EQ(Figures("run", "eval/avg_loss"), eval);
  EXPECT_FALSE(Figures("run", "eval/bits_per_byte").empty());
  EXPECT_EQ(teacher_.scored(), 80) << "every sample is scored once for training and once for eval";
}

TEST_F(DistillRunTest, TheLossIsTheWeightedSumAndPerplexityIsOfItsHardPart) {
  Run(Spec({"distill.alpha=0.25"}));
  const auto loss = Figures("run", "learning/loss");
  const auto soft = Figures("run", "distill/soft_loss");
  const auto hard = Figures("run", "distill/hard_loss");
  const auto perplexity = Figures("run", "learning/perplexity");
  ASSERT_EQ(loss.size(), 8u);
  for (size_t i = 0; i < loss.size(); ++i) {
    EXPECT_DOUBLE_EQ(loss[i], 0.75 * hard[i] + 0.25 * soft[i]);
    EXPECT_DOUBLE_EQ(perplexity[i], std::exp(hard[i]));
  }
}

TEST_F(DistillRunTest, WithAlphaZeroIsSftBitForBit) {
  for (const std::string packing : {"best_fit", "none"}) {
    const std::string word = "data.packing=" + packing;
    Run(Spec({word, "distill.alpha=0"}), "distilled" + packing);
    Run(Spec({word}, "sft"), "sft" + packing);
    EXPECT_EQ(Losses("distilled" + packing), Losses("sft" + packing));
    EXPECT_EQ(Weights("distilled" + packing), Weights("sft" + packing));
  }
  Run(Spec({"distill.alpha=0.5"}), "half");
  EXPECT_NE(Weights("half"), Weights("sftbest_fit"));
}

TEST_F(DistillRunTest, AnAdapterLearnsToo) {
  Run(Spec({"steps=30", "distill.alpha=1", "lora.rank=8", "lora.alpha=16"}));
  const auto soft = Figures("run", "distill/soft_loss");
  EXPECT_LT(soft.back(), soft.front() * 0.8);
  EXPECT_TRUE(fs::exists(dir_.path() / "run/adapter/adapter_model.safetensors"));
}

TEST_F(DistillRunTest, ResumesExactlyAndAsksNobodyAgain) {
  const std::vector<std::string> words = {"distill.temperature=2", "checkpoint_period=3",
                                          "data.eval=" + (dir_.path() / "train.txt").string()};
  Run(Spec(words), "whole");
  const int64_t asked = teacher_.scored();
  RunUntil(Spec(words), "parts", 2);
  EXPECT_EQ(teacher_.scored(), 2 * asked);
  Run(Spec(words), "parts");
  EXPECT_EQ(teacher_.scored(), 2 * asked) << "the figures are in the run's directory";
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
  EXPECT_EQ(File("parts/teacher/train"), File("whole/teacher/train"));
}

// A crash leaves the last checkpoint, as SIGKILL does.
TEST_F(DistillRunTest, ACrashAmongTheStepsResumesExactly) {
  const TrainSpec spec = Spec({"checkpoint_period=3", "checkpoint.async=false"});
  Run(spec, "whole");
  EXPECT_THROW(Run(spec, "parts",
                   [](const ProgressEvent& event) {
                     if (event.kind == std::string("step") && event.step == 5) {
                       throw std::runtime_error("crash");
                     }
                   }),
               std::runtime_error);
  Run(spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(DistillRunTest, APassThatEndedEarlyContinuesWithTheSamplesThatAreLeft) {
  std::ofstream text(dir_.path() / "train.txt");
  for (int i = 0; i < 200; ++i) text << "Sample number " << i << ".\n<|endoftext|>\n";
  text.close();
  Run(Spec(), "whole");
  ASSERT_EQ(teacher_.scored(), 200);
  int requests = 0;
  teacher_.change = [&](const tests::HubRequest& request,
                        const std::string& body) -> tests::HubReply {
    if (request.target == "/v1/completions" && ++requests == 3) {
      return {tests::Reply(400, "", R"({"error":{"message":"enough"}})")};
    }
    return {tests::Reply(200, "", body)};
  };
  const std::string fault = FaultOf(ErrorCode::kFailedPrecondition, [&] { Run(Spec(), "parts"); });
  EXPECT_NE(fault.find(teacher_.url() + "/completions: status 400 'enough'"), std::string::npos)
      << fault;
  EXPECT_NE(fault.find("128 samples are scored, and a new start continues there"),
            std::string::npos)
      << fault;
  // A kill while the last frame was written.
  std::ofstream(dir_.path() / "parts/teacher/train", std::ios::app) << "half a frame";
  const int64_t before = teacher_.scored();
  Run(Spec(), "parts");
  EXPECT_EQ(teacher_.scored() - before, 72);
  EXPECT_EQ(CountEvents("warning", "incomplete or damaged part"), 1);
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(DistillRunTest, AStopDuringThePassLosesNothing) {
  stop_.request_stop();
  EXPECT_EQ(Run(Spec()).status, TrainOutcome::Status::kStopped);
  stop_ = std::stop_source();
  Run(Spec());
  EXPECT_EQ(Losses().size(), 8u);
}

TEST_F(DistillRunTest, ATeacherWithAnotherTokenizerIsRefused) {
  teacher_.text_of = [](const StubTeacher::Json& tokens) {
    std::string text;
    for (const auto& id : tokens) text.push_back(static_cast<char>(std::tolower(id.get<int>())));
    return text;
  };
  const std::string fault = FaultOf(ErrorCode::kInvalidArgument, [&] { Run(Spec()); });
  EXPECT_NE(fault.find("the tokenizers of the teacher 'stub' and of the student differ"),
            std::string::npos)
      << fault;
  EXPECT_EQ(teacher_.scored(), 0);
}

TEST_F(DistillRunTest, AServerWithoutDetokenizeIsTrustedWithAWarning) {
  teacher_.change = [&](const tests::HubRequest& request,
                        const std::string& body) -> tests::HubReply {
    return {tests::Reply(request.target == "/detokenize" ? 404 : 200, "", body)};
  };
  Run(Spec());
  EXPECT_EQ(CountEvents("warning", "no /detokenize"), 1);
}

TEST_F(DistillRunTest, AnotherTeacherIsRefusedOnResume) {
  RunUntil(Spec({"distill.teacher_model=first"}), "run", 2);
  std::string fault =
      FaultOf(ErrorCode::kInvalidArgument, [&] { Run(Spec({"distill.teacher_model=second"})); });
  EXPECT_NE(fault.find("started with the teacher 'first'"), std::string::npos) << fault;
  FaultOf(ErrorCode::kInvalidArgument, [&] {
    Run(Spec({"distill.teacher_model=first", "distill.top_k=4"}));
  });
  Run(Spec({"distill.teacher_model=first"}));
  EXPECT_EQ(Losses().size(), 8u);
}

TEST_F(DistillRunTest, ATeacherThatChangesDuringThePassIsRefused) {
  std::ofstream text(dir_.path() / "train.txt");
  for (int i = 0; i < 100; ++i) text << "Sample number " << i << ".\n<|endoftext|>\n";
  text.close();
  int n = 0;
  teacher_.change = [&](const tests::HubRequest& request,
                        const std::string& body) -> tests::HubReply {
    StubTeacher::Json answer = StubTeacher::Json::parse(body);
    if (request.target == "/v1/completions" && ++n == 2) answer["system_fingerprint"] = "fp_new";
    return {tests::Reply(200, "", answer.dump())};
  };
  const std::string fault = FaultOf(ErrorCode::kFailedPrecondition, [&] { Run(Spec()); });
  EXPECT_NE(fault.find("system_fingerprint differs"), std::string::npos) << fault;
}

TEST_F(DistillRunTest, TheKeyOfTheFileIsSentAndKeptNowhere) {
  std::ofstream(dir_.path() / "key") << "sk-of-the-teacher\n";
  Run(Spec({"distill.teacher_key_file=" + (dir_.path() / "key").string()}));
  EXPECT_EQ(teacher_.requests().back().fields.at("authorization"), "Bearer sk-of-the-teacher");
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path() / "run")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(engine::ReadWholeFile(entry.path(), 1 << 28).find("sk-of-the-teacher"),
              std::string::npos)
        << entry.path();
  }
}

TEST_F(DistillRunTest, ProfileAndEvalNeedNoTeacher) {
  const TrainSpec spec = Spec({"distill.teacher_url=http://127.0.0.1:1/v1"});
  ProfileOptions options;
  options.steps = 1;
  options.warmup = 1;
  options.roof_flops = 1e9;
  EXPECT_GT(ProfileSpec(spec, options, {}).step_seconds, 0);
  Run(Spec({"lora.rank=4"}), "adapter");
  const TrainSpec eval = Spec({"data.eval=" + (dir_.path() / "train.txt").string()});
  EXPECT_GT(EvaluateModel(eval, dir_.path() / "adapter/adapter", {}).tokens, 0);
}

TEST_F(DistillRunTest, ConflictingKeysAreRefusedByName) {
  const auto fault = [&](const std::vector<std::string>& words) {
    return FaultOf(ErrorCode::kInvalidArgument, [&] { Spec(words); });
  };
  const auto expect = [&](const std::string& word, const std::string& part) {
    EXPECT_NE(fault({word}).find(part), std::string::npos) << fault({word});
  };
  expect("distill.teacher_url=", "distill.teacher_url: must be given");
  expect("distill.teacher_url=ftp://a", "distill.teacher_url: must be an http or https URL");
  expect("distill.teacher_url=http://me:secret@a/v1", "must not hold a key");
  EXPECT_EQ(fault({"distill.teacher_url=http://me:secret@a/v1"}).find("secret"), std::string::npos);
  expect("data.packing=concat_then_split", "data.packing: must not be concat_then_split");
  expect("data.overflow=split", "data.overflow: must not be split");
  expect("data.format=preference", "data.format");
  expect("distill.alpha=1.5", "distill.alpha");
  expect("distill.temperature=0", "distill.temperature");
  expect("distill.top_k=0", "distill.top_k");
  expect("distill_beta=0.5", "distill_beta: is not supported");
  EXPECT_NE(fault({"data.packing=none", "data.loss_mask=all"}).find("data.loss_mask"),
            std::string::npos);
  const TrainSpec sft = Spec({"distill_alpha=0.9"}, "sft");
  EXPECT_TRUE(std::any_of(sft.notes.begin(), sft.notes.end(), [](const std::string& note) {
    return note.find("distill.alpha has no effect") != std::string::npos;
  }));
}

TEST_F(DistillRunTest, RanksOfTheTensorAxisAreRefused) {
  Mesh mesh;
  mesh.tensor = 2;
  const std::string fault = FaultOf(ErrorCode::kUnsupported, [&] { SplitStep(Spec(), mesh); });
  EXPECT_NE(fault.find("ici_tensor_parallelism: must be 1 for train.distill"), std::string::npos);
}

}  // namespace
}  // namespace tandem::training
