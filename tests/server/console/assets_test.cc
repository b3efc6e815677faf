#include "server/console/assets.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxCompressedBytes = 100'000;

std::filesystem::path ConsoleDir() { return tests::SourceDir() / "server" / "console"; }

std::string ConsoleText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Names of the files in the folder that browsers load.
std::set<std::string> ConsoleFilesOnDisk() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ConsoleDir())) {
    const std::string ending = entry.path().extension();
    if (ending == ".js" || ending == ".css" || ending == ".html") {
      names.insert(std::filesystem::relative(entry.path(), ConsoleDir()).string());
    }
  }
  return names;
}

std::string Unzipped(const std::string& zipped, size_t n_bytes) {
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string in = zipped;
  std::string out(n_bytes + 1, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  inflateEnd(&stream);
  return out;
}

TEST(ConsoleAssets, EveryFileOfTheFolderIsEmbeddedAsItIs) {
  std::set<std::string> embedded;
  for (const std::string_view name : ConsoleFileNames()) {
    embedded.emplace(name);
    const ConsoleAsset* asset = FindConsoleAsset(name);
    ASSERT_NE(asset, nullptr) << name;
    EXPECT_EQ(asset->bytes, ConsoleText(ConsoleDir() / name)) << name;
    EXPECT_EQ(Unzipped(asset->gzip, asset->bytes.size()), asset->bytes) << name;
  }
  EXPECT_EQ(embedded, ConsoleFilesOnDisk()) << "list new files in server/console/assets.cc";
}

TEST(ConsoleAssets, AllFilesTogetherStaySmall) {
  size_t total = 0;
  for (const std::string_view name : ConsoleFileNames()) {
    total += FindConsoleAsset(name)->gzip.size();
  }
  EXPECT_LE(total, kMaxCompressedBytes);
}

// Text of models and files must never be parsed as markup, and nothing may run from a string.
TEST(ConsoleAssets, NoFileMakesMarkupOrCodeFromText) {
  const std::array words = {"innerHTML",          "outerHTML",
                            "insertAdjacentHTML", "document.write",
                            "DOMParser",          "eval(",
                            "new Function",       "srcdoc",
                            "javascript:",        "createContextualFragment"};
  for (const std::string_view name : ConsoleFileNames()) {
    const std::string& text = FindConsoleAsset(name)->bytes;
    for (const char* word : words) {
      EXPECT_EQ(text.find(word), std::string::npos) << name << " has " << word;
    }
  }
}

TEST(ConsoleAssets, NoFileNamesAnotherOrigin) {
  for (const std::string_view name : ConsoleFileNames()) {
    const std::string& text = FindConsoleAsset(name)->bytes;
    for (size_t at = 0; (at = text.find("://", at)) != std::string::npos; ++at) {
      // The namespace of SVG is a name, not an address.
      const std::string around = text.substr(at - 4, 30);
      EXPECT_NE(around.find("http://www.w3.org/2000/svg"), std::string::npos)
          << name << ": " << around;
    }
  }
}

TEST(ConsoleAssets, AFileOfTheDirectoryReplacesNoOtherFile) {
  tests::TemporaryDir dir;
  std::filesystem::create_directory(dir.path() / "lib");
  std::ofstream(dir.path() / "lib" / "x.js") << "export {};";
  std::ofstream(dir.path() / "secret.txt") << "secret";
  std::ofstream(dir.path() / ".hidden.js") << "secret";

  const auto found = ReadConsoleAsset(dir.path(), "lib/x.js");

  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, "export {};");
  EXPECT_EQ(found->content_type, "text/javascript; charset=utf-8");
  for (const char* name : {"lib/y.js", "secret.txt", ".hidden.js", "../x.js", "/etc/passwd", "lib",
                           "", "lib/../lib/x.js"}) {
    EXPECT_FALSE(ReadConsoleAsset(dir.path(), name)) << name;
  }
}

TEST(ConsoleAssets, TheTagChangesWithTheBytes) {
  tests::TemporaryDir dir;
  std::ofstream(dir.path() / "a.js") << "1";
  std::ofstream(dir.path() / "b.js") << "2";

  EXPECT_NE(ReadConsoleAsset(dir.path(), "a.js")->etag, ReadConsoleAsset(dir.path(), "b.js")->etag);
}

}  // namespace
}  // namespace tandem::server
