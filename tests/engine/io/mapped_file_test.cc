#include "engine/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>

#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

std::string TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, GivesTheBytesOfTheFile) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "hello");

  const auto file = MappedFile::Open(dir / "a");

  EXPECT_EQ(TextOf(*file), "hello");
  EXPECT_EQ(file->path(), dir / "a");
  EXPECT_EQ(file->identity().bytes, 5);
}

TEST(MappedFile, OfAnEmptyFileHasNoBytes) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "");

  EXPECT_TRUE(MappedFile::Open(dir / "a")->bytes().empty());
}

TEST(MappedFile, KeepsItsBytesWhenTheNameIsReplacedOrRemoved) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "old");
  const auto file = MappedFile::Open(dir / "a");

  WriteFile(dir / "b", "new!");
  std::filesystem::rename(dir / "b", dir / "a");
  EXPECT_NE(file->CurrentIdentity(), file->identity());
  std::filesystem::remove(dir / "a");

  EXPECT_EQ(TextOf(*file), "old");
  EXPECT_EQ(file->CurrentIdentity(), std::nullopt);
  std::filesystem::create_symlink(dir / "a", dir / "a");
  EXPECT_EQ(file->CurrentIdentity(), std::nullopt) << "a loop of links cannot be inspected";
}

// Kilobytes of mapped files that are resident in this process.
int64_t ResidentFileKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8));
  }
  return -1;
}

TEST(MappedFile, WhatIsLetGoLeavesMemoryAndCanBeReadAgain) {
  constexpr size_t kBytes = size_t{64} << 20;
  const TemporaryDir dir;
  WriteFile(dir / "a", std::string(kBytes, 'x'));
  const auto file = MappedFile::Open(dir / "a");
  ASSERT_EQ(TextOf(*file), std::string(kBytes, 'x'));
  const int64_t before = ResidentFileKilobytes();

  file->LetGo(file->bytes().subspan(kBytes / 2));
  const int64_t after = ResidentFileKilobytes();
  file->LetGo({file->bytes().data() + kBytes, 1});  // outside this file

  EXPECT_LT(after, before - (int64_t{30} << 10));
  EXPECT_EQ(TextOf(*file), std::string(kBytes, 'x'));
}

TEST(MappedFile, NamesWhatItCannotOpen) {
  const TemporaryDir dir;

  ExpectError(ErrorCode::kNotFound, {(dir / "none").string(), "No such file"},
              [&] { MappedFile::Open(dir / "none"); });
  ExpectError(ErrorCode::kIo, {dir.path().string(), "Is a directory"},
              [&] { MappedFile::Open(dir.path()); });
}

// Opening a pipe without a writer would block forever.
TEST(MappedFile, RefusesAPipeWithoutWaiting) {
  const TemporaryDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);

  ExpectError(ErrorCode::kIo, {"pipe", "not a regular file"},
              [&] { MappedFile::Open(dir / "pipe"); });
}

TEST(MappedFile, AFileThatIsCutShortReadsAsZerosAndSaysSo) {
  SurviveMappingFaults();
  constexpr size_t kPage = 4096;
  for (const size_t bytes : {3 * kPage, 3 * kPage - 1, size_t{9} << 20}) {
    SCOPED_TRACE(bytes);
    const TemporaryDir dir;
    WriteFile(dir / "a", std::string(bytes, 'x'));
    const auto file = MappedFile::Open(dir / "a");
    EXPECT_EQ(file->bytes().back(), std::byte{'x'});

    std::filesystem::resize_file(dir / "a", kPage);

    EXPECT_EQ(file->bytes()[2 * kPage], std::byte{0});
    EXPECT_EQ(file->bytes().back(), std::byte{0});
    EXPECT_EQ(file->bytes()[kPage], std::byte{0});
    EXPECT_EQ(file->bytes()[0], std::byte{'x'});
    EXPECT_TRUE(file->is_damaged());
    ExpectError(ErrorCode::kDataLoss, {(dir / "a").string(), "was truncated or became unreadable"},
                [&] { file->CheckUnchanged(); });
    WriteFile(dir / "b", "whole");
    EXPECT_FALSE(MappedFile::Open(dir / "b")->is_damaged());
  }
}

// A process of its own: another test may have installed the handler.
TEST(MappingWatch, WithoutTheHandlerAnyNumberOfFilesIsMapped) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        void* at = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const std::span page(static_cast<const std::byte*>(at), 4096);
        std::deque<MappingWatch> watches;
        for (size_t i = 0; i <= MappingWatch::kMaxWatches; ++i) watches.emplace_back(page);
        std::exit(watches.back().is_damaged() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(MappedFile, AFaultOutsideOfWatchedFilesStillEndsTheProcess) {
  SurviveMappingFaults();
  const TemporaryDir dir;
  WriteFile(dir / "a", std::string(3 * 4096, 'x'));
  EXPECT_DEATH(
      {
        const int fd = open((dir / "a").c_str(), O_RDONLY);
        void* at = mmap(nullptr, 3 * 4096, PROT_READ, MAP_SHARED, fd, 0);
        std::filesystem::resize_file(dir / "a", 4096);
        const volatile char* bytes = static_cast<const char*>(at);
        std::exit(bytes[2 * 4096]);
      },
      "");
}

TEST(MappedFile, AFileThatIsWrittenInPlaceIsChangedAndOneThatIsReplacedIsNot) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "old");
  const auto file = MappedFile::Open(dir / "a");
  EXPECT_NO_THROW(file->CheckUnchanged());
  WriteFile(dir / "b", "another");
  std::filesystem::rename(dir / "b", dir / "a");
  EXPECT_NO_THROW(file->CheckUnchanged());
  std::filesystem::remove(dir / "a");
  EXPECT_NO_THROW(file->CheckUnchanged());

  WriteFile(dir / "c", "old");
  const auto written = MappedFile::Open(dir / "c");
  WriteFile(dir / "c", "longer than before");
  ExpectError(ErrorCode::kDataLoss, {(dir / "c").string(), "3 bytes", "18", "rename"},
              [&] { written->CheckUnchanged(); });
}

}  // namespace
}  // namespace tandem::engine
