#include "server/cli/spec_paths.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

TEST(NewestCheckpoint, IsTheLastStepOfADirectoryOfCheckpoints) {
  const tests::TemporaryDir dir;
  for (const char* step : {"000000000008", "000000000016", "000000000024"}) {
    fs::create_directories(dir / step);
    // The last is no checkpoint: its writer was killed.
    if (std::string(step) != "000000000024") std::ofstream(dir / step / "manifest.json") << "{}";
  }
  fs::create_directories(dir / "earlier-1");
  EXPECT_EQ(NewestCheckpointIn(dir.path()), dir / "000000000016");
  EXPECT_EQ(NewestCheckpointIn(dir / "000000000008"), dir / "000000000008");
  EXPECT_EQ(NewestCheckpointIn("ORG/NAME"), "ORG/NAME");
  std::ofstream(dir / "config.json") << "{}";
  EXPECT_EQ(NewestCheckpointIn(dir.path()), dir.path());
}

}  // namespace
}  // namespace tandem::server
