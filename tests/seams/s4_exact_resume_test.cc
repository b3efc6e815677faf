// Seam S4: a training run killed with SIGKILL at any moment, even while it writes a checkpoint,
// resumes exactly. All losses and the exported weights equal, bit for bit, those of an undisturbed
// run.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/io/atomic_write.h"
#include "tests/support/model_harness.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

extern char** environ;

namespace tandem {
namespace {

namespace fs = std::filesystem;

// The program with its standard output in a pipe.
class TrainProcess {
 public:
  explicit TrainProcess(const std::vector<std::string>& words) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    out_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string program = tests::ProgramPath();
    std::vector<char*> argv = {program.data()};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }

  ~TrainProcess() {
    if (pid_ > 0) Kill(SIGKILL);
    close(out_);
  }
  TrainProcess(const TrainProcess&) = delete;
  TrainProcess& operator=(const TrainProcess&) = delete;

  pid_t pid() const { return pid_; }

  // Reads `n` lines; returns false if the output ends before.
  bool ReadLines(int n) {
    char byte = 0;
    while (n > 0) {
      if (read(out_, &byte, 1) != 1) return false;
      if (byte == '\n') --n;
    }
    return true;
  }

  // Waits until the child writes something, at most `ms`.
  void WaitForOutput(int ms) const {
    pollfd fd{out_, POLLIN, 0};
    poll(&fd, 1, ms);
  }

  void Kill(int signal_number) {
    kill(pid_, signal_number);
    Wait();
  }

  // Returns the exit code, or -1 after a signal.
  int Wait() {
    char byte = 0;
    while (read(out_, &byte, 1) == 1) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

class ExactResume : public testing::Test {
 protected:
  ExactResume() {
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_.path() / "base");
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 50; ++i) {
      text << "Story " << i << ": the " << (i % 3 != 0 ? "dog" : "cat")
           << " ran home and slept.\n<|endoftext|>\n";
    }
    std::ofstream spec(dir_.path() / "spec.yaml");
    spec << "base_output_directory: " << dir_.path().string() << "/runs\n"
         << "model: {n_layers: 1, hidden_dim: 32, n_heads: 2, dropout: 0.1, tokenizer_path: "
         << (dir_.path() / "base").string() << "}\n"
         << "data: {train: " << (dir_.path() / "train.txt").string()
         << ", max_target_length: 32, eos_token: \"<|endoftext|>\"}\n"
         << "train: {steps: 120, per_device_batch_size: 2, gradient_accumulation_steps: 2}\n"
         << "checkpoint: {period: 3, keep: 2}\nresources: {threads: 1}\n";
  }

  std::vector<std::string> TrainWords(const std::string& run_name) const {
    return {"train", (dir_.path() / "spec.yaml").string(), "run_name=" + run_name};
  }

  // Words that train an adapter of the tiny llama.
  std::vector<std::string> AdapterWords(std::vector<std::string> more) const {
    more.push_back("model.load_parameters_path=" + (dir_.path() / "base").string());
    more.push_back("lora.rank=4");
    return more;
  }

  fs::path Run(const std::string& name) const { return dir_.path() / "runs" / name; }

  // Every recorded loss, by step, in order.
  std::multimap<int64_t, double> Losses(const std::string& name) const {
    std::multimap<int64_t, double> losses;
    std::ifstream file(Run(name) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_discarded() || !json.contains("learning/loss")) continue;  // a line cut by a kill
      losses.emplace(json["step"], json["learning/loss"]);
    }
    return losses;
  }

  void ExpectKillsChangeNothing(std::vector<std::string> words, int n_kills);

  tests::TemporaryDir dir_;
};

// Kills a run `n_kills` times in succession and compares it with an undisturbed run of the same
// words.
void ExactResume::ExpectKillsChangeNothing(std::vector<std::string> words, int n_kills) {
  // A killed process makes fewer than 10 steps, and half of that on average.
  const int steps = 6 * n_kills + 30;
  words.push_back("steps=" + std::to_string(steps));
  const auto start = [&](const std::string& name) {
    std::vector<std::string> all = TrainWords(name);
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  ASSERT_EQ(TrainProcess(start("whole")).Wait(), 0);

  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int kills = 0;
  for (int attempt = 0; attempt < n_kills; ++attempt) {
    TrainProcess process(start("killed"));
    if (!process.ReadLines(1 + static_cast<int>(random() % 10))) break;
    // Half of the kills come at once, half during the work between two lines.
    if (random() % 2 != 0) process.WaitForOutput(static_cast<int>(random() % 20));
    process.Kill(SIGKILL);
    ++kills;
  }
  EXPECT_EQ(kills, n_kills);
  ASSERT_EQ(TrainProcess(start("killed")).Wait(), 0);

  const auto undisturbed = Losses("whole");
  ASSERT_EQ(undisturbed.size(), static_cast<size_t>(steps));
  const auto killed = Losses("killed");
  for (const auto& [step, loss] : killed) {
    EXPECT_EQ(loss, undisturbed.find(step)->second) << "step " << step;
  }
  for (const auto& [step, loss] : undisturbed) EXPECT_GE(killed.count(step), 1u) << step;
  const bool is_adapter = fs::exists(Run("whole") / "adapter");
  const auto weights = [&](const char* name) {
    return engine::ReadWholeFile(
        Run(name) / (is_adapter ? "adapter/adapter_model.safetensors" : "hf/model.safetensors"),
        1 << 28);
  };
  EXPECT_EQ(weights("killed"), weights("whole"));
}

// Returns `usually`, or fifty with TANDEM_SLOW_TESTS=1.
int NumberOfKills(int usually) {
  const char* slow = std::getenv("TANDEM_SLOW_TESTS");
  return slow != nullptr && std::string(slow) == "1" ? 50 : usually;
}

TEST_F(ExactResume, TwentyKillsChangeNoBitOfAnyLoss) {
  ExpectKillsChangeNothing({}, NumberOfKills(20));
}

struct RunKind {
  const char* name;
  std::vector<std::string> words;
};

class ExactResumeOf : public ExactResume, public testing::WithParamInterface<RunKind> {};

TEST_P(ExactResumeOf, KillsChangeNoBitOfAnyLoss) {
  ExpectKillsChangeNothing(GetParam().words, NumberOfKills(6));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ExactResumeOf,
    testing::Values(
        RunKind{"EightBitMoments", {"train.optimizer.state=8bit", "hidden_size=64"}},
        RunKind{"Sgd", {"opt_type=sgd", "train.optimizer.momentum=0.9"}},
        RunKind{"Packed", {"grain_packing_type=concat_then_split", "data.overflow=split"}},
        RunKind{"Unpacked", {"packing=false", "dtype=float32"}},
        RunKind{"Accumulated", {"per_device_batch_size=1", "gradient_accumulation_steps=5"}},
        RunKind{"Guarded",
                {"skip_step_on_spikes=true", "skip_step_interval=8", "skip_step_scaling_factor=1",
                 "train.on_nan=rollback"}},
        RunKind{"Waiting", {"checkpoint.async=false", "lr_schedule_type=wsd"}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_F(ExactResume, KillsChangeNothingOfFineTuningOnChats) {
  std::ofstream rows(dir_.path() / "rows.jsonl");
  for (int i = 0; i < 50; ++i) {
    rows << R"({"messages":[{"role":"user","content":")" << i
         << R"("},{"role":"assistant","content":"A )" << (i % 3 != 0 ? "dog" : "cat")
         << R"("},{"role":"user","content":"?"},{"role":"assistant","content":"Yes"}]})"
         << "\n";
  }
  rows.close();
  ExpectKillsChangeNothing({"kind=train.sft", "data.train=" + (dir_.path() / "rows.jsonl").string(),
                            "max_target_length=64"},
                           NumberOfKills(6));
}

// Kills also hit the computation of the reference.
TEST_F(ExactResume, KillsChangeNothingOfLearningPreferences) {
  std::ofstream rows(dir_.path() / "pairs.jsonl");
  for (int i = 0; i < 40; ++i) {
    rows << R"({"prompt":"Number )" << i << R"( is","chosen":" a )" << (i % 3 != 0 ? "dog" : "cat")
         << R"(","rejected":" none of )" << i % 7 << "\"}\n";
  }
  rows.close();
  const std::string pairs = (dir_.path() / "pairs.jsonl").string();
  ExpectKillsChangeNothing({"kind=train.dpo", "data.train=" + pairs, "data.eval=" + pairs,
                            "eval_interval=7", "max_target_length=48"},
                           NumberOfKills(6));
}

TEST_F(ExactResume, KillsChangeNothingOfLearningPreferencesWithAnAdapter) {
  std::ofstream rows(dir_.path() / "pairs.jsonl");
  for (int i = 0; i < 40; ++i) {
    rows << R"({"prompt":"Number )" << i << R"( is","chosen":" a dog","rejected":" no )" << i % 7
         << "\"}\n";
  }
  rows.close();
  ExpectKillsChangeNothing(
      AdapterWords({"kind=train.dpo", "data.train=" + (dir_.path() / "pairs.jsonl").string(),
                    "max_target_length=48", "lora.dropout=0.1", "lora.base_dtype=int8"}),
      NumberOfKills(4));
}

TEST_F(ExactResume, KillsChangeNoBitOfAnAdapterWithDropout) {
  ExpectKillsChangeNothing(AdapterWords({"lora.dropout=0.2"}), NumberOfKills(8));
}

TEST_F(ExactResume, KillsChangeNoBitOfAnAdapterBesideWeightsOfFourBits) {
  ExpectKillsChangeNothing(AdapterWords({"lora.dropout=0.1", "lora.base_dtype=int4"}),
                           NumberOfKills(8));
}

TEST_F(ExactResume, SigtermSavesAndSaysTryAgain) {
  TrainProcess process(TrainWords("stopped"));
  ASSERT_TRUE(process.ReadLines(6));
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 75);

  // No result: the supervisor must start the run again.
  EXPECT_FALSE(fs::exists(Run("stopped") / "result.json"));
  EXPECT_TRUE(fs::exists(Run("stopped") / "checkpoints" / "LATEST"));
}

TEST_F(ExactResume, AJobDirectoryHoldsAllThatAWatcherNeeds) {
  const fs::path job = dir_.path() / "job";
  fs::create_directories(job);
  fs::copy_file(dir_.path() / "spec.yaml", job / "spec.yaml");
  TrainProcess process({"train", "--job", job.string(), "steps=4"});
  EXPECT_EQ(process.Wait(), 0);

  const auto result = nlohmann::json::parse(engine::ReadWholeFile(job / "result.json", 1 << 20));
  EXPECT_EQ(result["status"], "succeeded");
  EXPECT_TRUE(fs::exists(fs::path(result["model_dir"].get<std::string>()) / "config.json"));
  std::ifstream events(job / "events.jsonl");
  int steps = 0;
  for (std::string line; std::getline(events, line);) {
    steps += nlohmann::json::parse(line)["kind"] == "step" ? 1 : 0;
  }
  EXPECT_EQ(steps, 4);
}

TEST_F(ExactResume, AFailedJobSaysWhy) {
  const fs::path job = dir_.path() / "job";
  fs::create_directories(job);
  std::ofstream(job / "spec.json") << "{\"train\": {\"stepz\": 3}}";
  TrainProcess process({"train", "--job", job.string()});
  EXPECT_EQ(process.Wait(), 2);

  const auto result = nlohmann::json::parse(engine::ReadWholeFile(job / "result.json", 1 << 20));
  EXPECT_EQ(result["status"], "failed");
  EXPECT_EQ(result["error"]["code"], "invalid_spec");
  EXPECT_NE(result["error"]["message"].get<std::string>().find("train.steps"), std::string::npos);
}

}  // namespace
}  // namespace tandem
