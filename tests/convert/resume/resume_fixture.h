#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/convert/convert_fixture.h"

namespace tandem::convert {

// Conversions in child processes that the test kills.
class KilledConversionTest : public ConversionTest {
 protected:
  static std::filesystem::path Part(const ConvertSpec& spec) {
    std::filesystem::path part = spec.target;
    return part += ".part";
  }

  // Runs the conversion in a child process, which `meanwhile` may kill.
  static int RunInChild(const ConvertSpec& spec, const std::function<void(pid_t child)>& meanwhile,
                        const std::function<void(const ProgressEvent&)>& report = {}) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        ThreadPool pool(2);
        engine::OpsContext ops(engine::Kernels(), pool);
        JobContext context;
        context.report = report;
        Convert(spec, context, ops);
        code = 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(code);
    }
    meanwhile(child);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  // Runs the conversion in a child that cannot write a file longer than `bytes`, like on a full
  // disk. It must end with kIo, and the message must contain all `names`.
  static void ExpectFullDisk(const ConvertSpec& spec, rlim_t bytes,
                             const std::vector<std::string>& names) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
      int code = 1;
      try {
        ThreadPool pool(2);
        engine::OpsContext ops(engine::Kernels(), pool);
        Convert(spec, {}, ops);
      } catch (const Error& error) {
        const std::string what = error.what();
        code = error.code() == ErrorCode::kIo ? 0 : 2;
        for (const std::string& name : names) code = what.find(name) != what.npos ? code : 3;
        if (code != 0) std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "1: written, 2: another error, 3: it does not name them";
  }

  // Waits until the journal has so many lines; it follows the writes.
  static void WaitForLines(const ConvertSpec& spec, int64_t lines) {
    for (int i = 0; i < 500; ++i) {
      std::ifstream journal(Part(spec) / "journal");
      int64_t n = 0;
      for (std::string line; std::getline(journal, line);) n += line.empty() ? 0 : 1;
      if (n >= lines) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // Kills the child at `percent` of progress, once the journal has so many lines.
  static void RunUntil(const ConvertSpec& spec, int64_t percent, int64_t lines) {
    const int status = RunInChild(
        spec, [](pid_t) {},
        [&](const ProgressEvent& event) {
          if (event.kind != "message" || event.step < percent) return;
          WaitForLines(spec, lines);
          kill(getpid(), SIGKILL);
        });
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_TRUE(std::filesystem::exists(Part(spec) / "journal"));
  }
};

}  // namespace tandem::convert
