#include "engine/io/block_writer.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>

#include "engine/io/mapped_file.h"
#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

TEST(BlockWriter, WritesTheSameBytesHoweverTheyAreCut) {
  const TemporaryDir dir;
  std::string text(2 * kHugePageBytes + 12345, '\0');
  std::mt19937 rng(5);
  for (char& c : text) c = static_cast<char>(rng());
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::vector<size_t>> cuts = {
      {text.size()}, {1, kHugePageBytes, 3}, {kHugePageBytes, kHugePageBytes}, {777, 100'000}};

  for (size_t i = 0; i < cuts.size(); ++i) {
    BlockWriter writer(dir / std::to_string(i));
    size_t at = 0;
    for (const size_t cut : cuts[i]) {
      writer.Write(bytes.subspan(at, cut));
      at += cut;
    }
    writer.Write(bytes.subspan(at));
    writer.Finish();

    EXPECT_TRUE(FileText(dir / std::to_string(i)) == text) << i;
  }
}

TEST(BlockWriter, ReplacesNothing) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "old");

  ExpectError(ErrorCode::kAlreadyExists, {"a"}, [&] { BlockWriter writer(dir / "a"); });
  EXPECT_EQ(FileText(dir / "a"), "old");
}

TEST(BlockWriter, NamesTheFileOfAFullDisk) {
  const auto write_past_the_limit = [] {
    const TemporaryDir dir;
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{kHugePageBytes, kHugePageBytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    BlockWriter writer(dir / "large");
    const std::vector<std::byte> bytes(2 * kHugePageBytes);
    ExpectError(ErrorCode::kIo, {"large"}, [&] { writer.Write(bytes); });
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };

  EXPECT_EXIT(write_past_the_limit(), testing::ExitedWithCode(0), "");
}

// Required for the kernel to map its cache with huge pages.
TEST(MappedFile, OfAHugePageAndMoreBeginsOnTheBorderOfOne) {
  const TemporaryDir dir;
  for (const size_t size : {kHugePageBytes, kHugePageBytes + 1, 3 * kHugePageBytes - 4096}) {
    const std::string name = std::to_string(size);
    std::string text(size, 'x');
    text.front() = 'a';
    text.back() = 'z';
    WriteFile(dir / name, text);

    const auto file = MappedFile::Open(dir / name);

    ASSERT_EQ(file->bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file->bytes().data()) % kHugePageBytes, 0u);
    EXPECT_TRUE(std::memcmp(file->bytes().data(), text.data(), size) == 0);
  }
}

}  // namespace
}  // namespace tandem::engine
