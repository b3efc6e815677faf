// Killed conversions, and conversions without enough disk space.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "convert/work/work_dir.h"
#include "tests/convert/families.h"
#include "tests/convert/resume/resume_fixture.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using namespace std::chrono_literals;

class ResumeTest : public KilledConversionTest {
 protected:
  static constexpr int kLayers = 12;
  static constexpr int64_t kElements = 1 << 16;  // per tensor

  ResumeTest() : model_(dir_.path() / "model") {
    fs::create_directory(model_);
    std::ofstream(model_ / "config.json") << "{\"model_type\": \"llama\"}";
    std::mt19937 random(1);
    std::vector<std::vector<float>> data;
    std::vector<engine::NamedTensor> tensors;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::string kind : {"a", "b"}) {
        data.emplace_back(kElements);
        for (float& value : data.back()) value = static_cast<float>(random()) * 1e-9f;
        tensors.push_back({"layers." + std::to_string(layer) + "." + kind,
                           {reinterpret_cast<const std::byte*>(data.back().data()),
                            DType::kF32,
                            {kElements / 256, 256}}});
      }
    }
    engine::WriteSafetensors(model_ / "model.safetensors", tensors, {{"format", "pt"}});
  }

  // The weight file that a killed conversion left.
  fs::path Unfinished(const ConvertSpec& spec) const {
    return Part(spec) / WorkDir::kOut / "model-00001-of-00001.safetensors";
  }

  // Kills the conversion when all is written and recorded in the journal.
  void RunUntilWritten(const ConvertSpec& spec) { RunUntil(spec, 45, 2 * kLayers); }
  // Stops a job when all is written and recorded in the journal.
  void StopWhenWritten(const ConvertSpec& spec) {
    std::stop_source stop;
    JobContext context;
    context.dir = "/jobs/job-1";
    context.stop = stop.get_token();
    context.report = [&](const ProgressEvent& event) {
      if (event.step < 45 || stop.stop_requested()) return;
      WaitForLines(spec, 2 * kLayers);
      stop.request_stop();
    };
    EXPECT_EQ(Fault(spec, context)->code(), ErrorCode::kCancelled);
  }
  // Flips one bit in the middle of the tensors.
  static void Flip(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(file) / 2);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(byte);
  }

  const fs::path model_;
};

TEST_F(ResumeTest, WhatIsWrittenIsNotWrittenAgain) {
  ConvertSpec whole = Spec(model_, "native", "whole");
  Run(whole);
  ConvertSpec spec = Spec(model_, "native");
  RunUntilWritten(spec);
  Flip(Unfinished(spec));

  // Only the comparison detects a bit that is flipped meanwhile.
  spec.verify = false;
  Run(spec);

  EXPECT_FALSE(fs::exists(Part(spec)));
  const std::string file = "model-00001-of-00001.safetensors";
  EXPECT_NE(Text(spec.target / file), Text(whole.target / file));
  EXPECT_EQ(Text(spec.target / file).size(), Text(whole.target / file).size());
  spec.target = dir_.path() / "compared";
  spec.verify = true;
  RunUntilWritten(spec);
  Flip(Unfinished(spec));
  ExpectFault(spec, ErrorCode::kDataLoss, "differs from the written tensor");
  EXPECT_FALSE(fs::exists(Part(spec)));
}

TEST_F(ResumeTest, AJobThatWasStoppedGoesOnAsAfterAKill) {
  for (const std::string format : {"native", "hf"}) {
    SCOPED_TRACE(format);
    const ConvertSpec whole = Spec(model_, format, "whole-" + format);
    Run(whole);
    ConvertSpec spec = Spec(model_, format, "out-" + format);
    StopWhenWritten(spec);
    ASSERT_TRUE(fs::exists(Part(spec) / "journal"));
    EXPECT_FALSE(fs::exists(spec.target));
    std::vector<std::string> said;
    JobContext again;
    again.dir = "/jobs/job-1";
    again.report = [&](const ProgressEvent& event) { said.push_back(event.message); };

    Run(spec, again);

    EXPECT_EQ(said.at(0), "resuming an interrupted conversion");
    ExpectSameContents(Contents(spec.target), Contents(whole.target));
    EXPECT_FALSE(fs::exists(Part(spec)));
  }
  // Tensors in the journal are not written again.
  ConvertSpec spec = Spec(model_, "native", "flipped");
  spec.verify = false;
  StopWhenWritten(spec);
  Flip(Unfinished(spec));
  Run(spec);
  const std::string file = "model-00001-of-00001.safetensors";
  EXPECT_NE(Text(spec.target / file), Text(dir_.path() / "whole-native" / file));
}

TEST_F(ResumeTest, WhatAStoppedJobLeftIsRemovedWhereNobodyIsAtWork) {
  const ConvertSpec spec = Spec(model_, "native");
  RemoveUnfinished(spec.target);
  StopWhenWritten(spec);
  {
    const WorkDir at_work(spec.target);
    EXPECT_THROW(RemoveUnfinished(spec.target), Error);
    EXPECT_TRUE(fs::exists(Part(spec) / "journal"));
  }
  EXPECT_FALSE(fs::exists(Part(spec)));
  StopWhenWritten(spec);

  RemoveUnfinished(spec.target);

  EXPECT_FALSE(fs::exists(Part(spec)));
  fs::create_directory(Part(spec));
  std::ofstream(Part(spec) / "thesis.txt") << "years of work";
  EXPECT_THROW(RemoveUnfinished(spec.target), Error);
  EXPECT_TRUE(fs::exists(Part(spec) / "thesis.txt"));
}

TEST_F(ResumeTest, AnotherSourceOrSpecStartsAnew) {
  ConvertSpec whole = Spec(model_, "native", "whole");
  Run(whole);
  ConvertSpec spec = Spec(model_, "native");
  spec.verify = false;
  const auto expect_new = [&](const ConvertSpec& changed, const fs::path& wanted) {
    Run(changed);
    ExpectSameContents(Contents(changed.target), Contents(wanted));
    fs::remove_all(changed.target);
  };

  RunUntilWritten(spec);
  Flip(Unfinished(spec));
  fs::last_write_time(model_ / "model.safetensors", fs::file_time_type::clock::now() - 1h);
  expect_new(spec, whole.target);

  RunUntilWritten(spec);
  Flip(Unfinished(spec));
  ConvertSpec cast = spec;
  cast.dtype = "bf16";
  ConvertSpec whole_cast = cast;
  whole_cast.target = dir_.path() / "whole-cast";
  Run(whole_cast);
  expect_new(cast, whole_cast.target);

  // A missing or truncated target file is written again, whatever the journal says.
  RunUntilWritten(spec);
  Flip(Unfinished(spec));
  fs::resize_file(Unfinished(spec), 1000);
  expect_new(spec, whole.target);
  RunUntilWritten(spec);
  fs::remove(Unfinished(spec));
  expect_new(spec, whole.target);
}

TEST_F(ResumeTest, KilledAtAnyMomentItEndsAsIfItHadNotBeen) {
  const int kills = std::getenv("TANDEM_SLOW_TESTS") != nullptr ? 50 : kIsSanitized ? 2 : 6;
  std::mt19937 random(std::random_device{}());
  for (const std::string format : {"native", "hf"}) {
    ConvertSpec whole = Spec(model_, format, "whole-" + format);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(RunInChild(whole, [](pid_t) {}), 0);
    const auto took = std::chrono::steady_clock::now() - begin;
    const auto wanted = Contents(whole.target);
    for (int i = 0; i < kills; ++i) {
      ConvertSpec spec = Spec(model_, format, "out-" + format);
      spec.overwrite = i % 2 == 1;
      for (int life = 0; life < 3 && (spec.overwrite || !fs::exists(spec.target)); ++life) {
        const auto when = took * (random() % 100) / 100;
        RunInChild(spec, [&](pid_t child) {
          std::this_thread::sleep_for(when);
          kill(child, SIGKILL);
        });
      }
      spec.overwrite = spec.overwrite || fs::exists(spec.target);

      Run(spec);

      ExpectSameContents(Contents(spec.target), wanted);
      EXPECT_FALSE(fs::exists(Part(spec)));
      if (i % 2 == 1) fs::remove_all(spec.target);
    }
  }
}

TEST_F(ResumeTest, OneConversionOfATargetAtATime) {
  const ConvertSpec spec = Spec(model_, "native");
  fs::create_directory(Part(spec));
  const int lock = open(Part(spec).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);

  ExpectFault(spec, ErrorCode::kUnavailable, "another conversion");

  close(lock);
  Run(spec);
  // A folder with that name that is not a conversion is left alone.
  const ConvertSpec beside = Spec(model_, "native", "beside");
  fs::create_directory(Part(beside));
  std::ofstream(Part(beside) / "thesis.txt") << "years of work";
  ExpectFault(beside, ErrorCode::kAlreadyExists, "beside.part");
  EXPECT_TRUE(fs::exists(Part(beside) / "thesis.txt"));
}

TEST_F(ResumeTest, AFullDiskIsNamedAndLeavesNothing) {
  const ConvertSpec spec = Spec(model_, "native");
  ExpectFullDisk(spec, 1 << 20, {"model-00001-of-00001"});

  EXPECT_FALSE(fs::exists(Part(spec)));
  EXPECT_FALSE(fs::exists(spec.target));
}

}  // namespace
}  // namespace tandem::convert
