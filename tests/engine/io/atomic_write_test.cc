#include "engine/io/atomic_write.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <thread>

#include "engine/formats/safetensors/safetensors.h"
#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

TEST(WriteFileAtomically, WritesAndReplacesAndLeavesNothingElse) {
  const TemporaryDir dir;

  WriteFileAtomically(dir / "a", "one");
  WriteFileAtomically(dir / "a", std::string(3 << 20, 'x'));

  EXPECT_EQ(FileText(dir / "a"), std::string(3 << 20, 'x'));
  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"a"});
}

TEST(WriteFileAtomically, LeavesTheOldFileAndNoTemporaryWhenItFails) {
  const TemporaryDir dir;
  fs::create_directory(dir / "a");  // rename cannot replace a directory by a file
  WriteFile(dir / "a" / "inside", "old");

  ExpectError(ErrorCode::kIo, {(dir / "a").string()}, [&] { WriteFileAtomically(dir / "a", "x"); });

  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"a"});
  EXPECT_EQ(FileText(dir / "a" / "inside"), "old");
}

TEST(WriteFileAtomically, NamesADirectoryThatIsNotThere) {
  const TemporaryDir dir;

  ExpectError(ErrorCode::kNotFound, {"none", "No such file"},
              [&] { WriteFileAtomically(dir / "none" / "a", "x"); });
}

// Concurrent readers see one whole text or the other, never a mixture.
TEST(WriteFileAtomically, ReadersNeverSeeHalfAFile) {
  const TemporaryDir dir;
  WriteFileAtomically(dir / "a", std::string(100000, 'a'));
  std::jthread writer([&](const std::stop_token& stop) {
    for (char c = 'a'; !stop.stop_requested(); c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
      WriteFileAtomically(dir / "a", std::string(100000, c));
    }
  });

  for (int i = 0; i < 200; ++i) {
    const std::string text = ReadWholeFile(dir / "a", 1 << 20);
    ASSERT_EQ(text, std::string(100000, text.empty() ? '?' : text[0]));
  }
}

TEST(PublishDirectory, GivesTheNameOnlyToTheWholeDirectory) {
  const TemporaryDir dir;

  PublishDirectory(dir / "out", [&](const fs::path& temporary) {
    EXPECT_EQ(temporary.parent_path(), dir.path());
    EXPECT_EQ(temporary.filename().string().rfind("out.tmp-", 0), 0u);
    EXPECT_FALSE(fs::exists(dir / "out"));
    fs::create_directories(temporary / "deep" / "er");
    WriteFile(temporary / "a", "1");
    WriteFile(temporary / "deep" / "er" / "b", "2");
  });

  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(FileText(dir / "out" / "deep" / "er" / "b"), "2");
}

TEST(PublishDirectory, AcceptsATrailingSlash) {
  const TemporaryDir dir;

  PublishDirectory(dir.path().string() + "/out/", [](const fs::path&) {});

  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"out"});
}

TEST(PublishDirectory, RefusesANameThatIsTakenBeforeAndAfterFilling) {
  const TemporaryDir dir;
  fs::create_directory(dir / "taken");

  ExpectError(ErrorCode::kAlreadyExists, {(dir / "taken").string()},
              [&] { PublishDirectory(dir / "taken", [](const fs::path&) { FAIL(); }); });
  // Another process is faster; a plain rename would replace its empty directory.
  ExpectError(ErrorCode::kAlreadyExists, {(dir / "late").string()}, [&] {
    PublishDirectory(dir / "late", [&](const fs::path&) { fs::create_directory(dir / "late"); });
  });

  EXPECT_EQ(NamesIn(dir.path()), (std::vector<std::string>{"late", "taken"}));
}

TEST(PublishDirectory, ReplacesWhatIsThereOnRequestWholly) {
  const TemporaryDir dir;
  fs::create_directory(dir / "out");
  WriteFile(dir / "out" / "old", "1");
  const auto publish = [&](const char* name) {
    PublishDirectory(
        dir / "out",
        [&](const fs::path& temporary) {
          EXPECT_EQ(NamesIn(dir / "out"), std::vector<std::string>{"old"}) << "until it is whole";
          WriteFile(temporary / name, "2");
          if (std::string(name) == "bad") throw Error(ErrorCode::kIo, "disk");
        },
        IfThere::kReplace);
  };

  EXPECT_THROW(publish("bad"), Error);
  EXPECT_EQ(NamesIn(dir / "out"), std::vector<std::string>{"old"});
  publish("new");

  EXPECT_EQ(NamesIn(dir / "out"), std::vector<std::string>{"new"});
  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"out"});
  fs::remove_all(dir / "out");
  PublishDirectory(
      dir / "out", [](const fs::path& temporary) { WriteFile(temporary / "a", "3"); },
      IfThere::kReplace);
  EXPECT_EQ(NamesIn(dir / "out"), std::vector<std::string>{"a"});
}

TEST(PublishDirectory, RemovesTheTemporaryAndPassesTheExceptionOn) {
  const TemporaryDir dir;

  EXPECT_THROW(PublishDirectory(dir / "out",
                                [](const fs::path& temporary) {
                                  WriteFile(temporary / "a", "1");
                                  throw std::logic_error("stop");
                                }),
               std::logic_error);

  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

TEST(RemoveStaleTemporaries, RemovesOnlyLeftovers) {
  const TemporaryDir dir;
  fs::create_directories(dir / "step-10.tmp-0123" / "deep");
  WriteFile(dir / "step-10.tmp-0123" / "deep" / "a", "1");
  WriteFile(dir / "state.json.tmp-77", "{");
  WriteFile(dir / "state.json", "{}");
  WriteFile(dir / ".tmp-no-name", "kept");
  fs::create_directory(dir / "step-5");

  RemoveStaleTemporaries(dir.path());

  EXPECT_EQ(NamesIn(dir.path()),
            (std::vector<std::string>{".tmp-no-name", "state.json", "step-5"}));
}

TEST(RemoveStaleTemporaries, OfOneNameLeavesThoseOfOthers) {
  const TemporaryDir dir;
  for (const char* name : {"out.tmp-1", "out.tmp-2", "out-2.tmp-1", "other.tmp-1"}) {
    fs::create_directory(dir / name);
  }

  RemoveStaleTemporaries(dir.path(), "out");

  EXPECT_EQ(NamesIn(dir.path()), (std::vector<std::string>{"other.tmp-1", "out-2.tmp-1"}));
}

TEST(RemoveStaleTemporaries, SparesTheTemporaryOfALivingWriter) {
  const TemporaryDir dir;

  PublishDirectory(dir / "out", [&](const fs::path& temporary) {
    WriteFile(temporary / "a", "1");
    RemoveStaleTemporaries(dir.path());
  });

  EXPECT_EQ(FileText(dir / "out" / "a"), "1");
}

TEST(RemoveStaleTemporaries, TakesThatOfAKilledWriter) {
  const TemporaryDir dir;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    PublishDirectory(dir / "out", [](const fs::path& temporary) {
      WriteFile(temporary / "a", "1");
      raise(SIGKILL);
    });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(NamesIn(dir.path()).size(), 1u);

  RemoveStaleTemporaries(dir.path());

  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

TEST(RemoveStaleTemporaries, DoesNotFollowLinksOrMindAMissingDirectory) {
  const TemporaryDir dir;
  WriteFile(dir / "precious", "kept");
  fs::create_symlink(dir / "precious", dir / "a.tmp-1");

  RemoveStaleTemporaries(dir.path());
  RemoveStaleTemporaries(dir / "none");

  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"precious"});
}

TEST(ReadWholeFile, ReadsUpToTheLimitAndRefusesMore) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "12345");
  WriteFile(dir / "empty", "");

  EXPECT_EQ(ReadWholeFile(dir / "a", 5), "12345");
  EXPECT_EQ(ReadWholeFile(dir / "empty", 0), "");
  ExpectError(ErrorCode::kDataLoss, {(dir / "a").string(), "5", "4"},
              [&] { ReadWholeFile(dir / "a", 4); });
  ExpectError(ErrorCode::kNotFound, {"none"}, [&] { ReadWholeFile(dir / "none", 5); });
  ExpectError(ErrorCode::kIo, {"Is a directory"}, [&] { ReadWholeFile(dir.path(), 5); });
}

TEST(ReadWholeFile, ReadsFilesThatDoNotSayHowLongTheyAre) {
  EXPECT_NE(ReadWholeFile("/proc/self/status", 1 << 20).find("Pid:"), std::string::npos);
  EXPECT_THROW(ReadWholeFile("/proc/self/status", 10), Error);
}

class FullDisk : public testing::Test {
 protected:
  // Runs `prepare` and then `action` in a child process, because `prepare` affects a whole process.
  // Returns the error of `action`, or why `prepare` failed.
  static std::string InChild(const std::function<std::string()>& prepare,
                             const std::function<void()>& action) {
    std::array<int, 2> channel{};
    if (pipe(channel.data()) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      close(channel[0]);
      std::string report = prepare();
      try {
        if (report.empty()) {
          action();
          report = "no error";
        }
      } catch (const Error& error) {
        report = (error.code() == ErrorCode::kIo ? "kIo " : "other ") + std::string(error.what());
      }
      const ssize_t written = write(channel[1], report.data(), report.size());
      _exit(written == static_cast<ssize_t>(report.size()) ? 0 : 1);
    }
    close(channel[1]);
    std::string report(4096, '\0');
    const ssize_t got = read(channel[0], report.data(), report.size());
    report.resize(got < 0 ? 0 : static_cast<size_t>(got));
    close(channel[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return report;
  }

  // Limits files to `bytes`: a write fails in the middle of a file as on a full disk, with another
  // errno. Needs no privileges.
  static std::string InChildWithLimit(rlim_t bytes, const std::function<void()>& action) {
    return InChild(
        [bytes]() -> std::string {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{bytes, bytes};
          return setrlimit(RLIMIT_FSIZE, &limit) == 0 ? "" : "setrlimit failed";
        },
        action);
  }
};

// A real full disk: a tmpfs of 64 KiB in the child's own mount namespace.
TEST_F(FullDisk, SaysNoSpaceLeftOnDeviceAndKeepsTheOldFile) {
  const TemporaryDir dir;
  const auto mount_small_disk = [&]() -> std::string {
    const int own = geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS;
    if (unshare(own) != 0) return "cannot mount: unshare";
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "cannot mount: /";
    if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) return "cannot mount";
    return "";
  };

  const std::string report = InChild(mount_small_disk, [&] {
    WriteFileAtomically(dir / "a", "old");
    try {
      WriteFileAtomically(dir / "a", std::string(100000, 'x'));
    } catch (const Error&) {
      if (FileText(dir / "a") != "old") throw Error(ErrorCode::kInternal, "the old file is gone");
      if (NamesIn(dir.path()).size() != 1) throw Error(ErrorCode::kInternal, "a temporary stays");
      throw;
    }
  });

  if (report.rfind("cannot mount", 0) == 0) GTEST_SKIP() << report << " (no right to mount here)";
  EXPECT_EQ(report.rfind("kIo could not write " + (dir / "a").string(), 0), 0u) << report;
  EXPECT_NE(report.find("No space left on device"), std::string::npos) << report;
}

TEST_F(FullDisk, LeavesTheOldFileWholeAndNoTemporary) {
  const TemporaryDir dir;
  WriteFileAtomically(dir / "a", "old");

  const std::string report =
      InChildWithLimit(100000, [&] { WriteFileAtomically(dir / "a", std::string(200000, 'x')); });

  EXPECT_EQ(report.rfind("kIo could not write " + (dir / "a").string(), 0), 0u) << report;
  EXPECT_NE(report.find("File too large"), std::string::npos) << report;
  EXPECT_EQ(FileText(dir / "a"), "old");
  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"a"});
}

TEST_F(FullDisk, LeavesNoHalfSafetensorsFile) {
  const TemporaryDir dir;
  const std::vector<std::byte> bytes(400000);
  const std::vector<NamedTensor> tensors = {{"w", {bytes.data(), DType::kF32, {100000}}}};

  const std::string report =
      InChildWithLimit(100000, [&] { WriteSafetensors(dir / "m.safetensors", tensors, {}); });

  EXPECT_EQ(report.rfind("kIo could not write " + (dir / "m.safetensors").string(), 0), 0u)
      << report;
  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

TEST_F(FullDisk, WhilePublishingLeavesTheOldCheckpointValid) {
  const TemporaryDir dir;
  const std::vector<std::byte> bytes(40000);
  const std::vector<NamedTensor> small = {{"w", {bytes.data(), DType::kF32, {100}}}};
  const std::vector<NamedTensor> large = {{"w", {bytes.data(), DType::kF32, {10000}}}};
  const auto publish = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    PublishDirectory(dir / name, [&](const fs::path& temporary) {
      WriteSafetensors(temporary / "model.safetensors", tensors, {});
    });
  };
  publish("step-1", small);

  const std::string report = InChildWithLimit(10000, [&] { publish("step-2", large); });

  EXPECT_EQ(report.rfind("kIo", 0), 0u) << report;
  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"step-1"});
  EXPECT_NO_THROW(SafetensorsFile::Open(dir / "step-1" / "model.safetensors"));
}

}  // namespace
}  // namespace tandem::engine
