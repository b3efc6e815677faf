#include "server/models/adapter_book.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

// SQLite has the same statements as the database of replicas.
class AdapterBookTest : public testing::Test {
 protected:
  DatabaseSource Source() const { return {.file = dir_ / "tandem.db"}; }
  std::filesystem::path LockFile() const { return dir_ / "adapters.lock"; }
  nlohmann::json Locked() const {
    return nlohmann::json::parse(engine::ReadWholeFile(LockFile(), 1 << 20));
  }

  tests::TemporaryDir dir_;
};

TEST_F(AdapterBookTest, ListsWhatAnyReplicaHasPut) {
  AdapterBook here(Source(), LockFile());
  AdapterBook there(Source(), LockFile());
  here.Put({"b", "base", "/adapters/b", "22", 7});
  there.Put({"a", "base", "/adapters/a", "11", 8});
  here.Put({"b", "base", "/adapters/b2", "33", 9});  // replaced

  const std::vector<SharedAdapter> adapters = there.List();

  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].name, "a");
  EXPECT_EQ(adapters[1].path, "/adapters/b2");
  EXPECT_EQ(adapters[1].fingerprint, "33");
  EXPECT_EQ(adapters[1].created_at, 9);
}

TEST_F(AdapterBookTest, EveryChangeWritesTheLockFile) {
  AdapterBook book(Source(), LockFile());
  book.Put({"b", "base", "/adapters/b", "22", 7});
  book.Put({"a \xff\"", "base", "/adapters/a", "11", 8});

  const nlohmann::json locked = Locked();
  EXPECT_EQ(locked["format"], "tandem-adapters");
  EXPECT_EQ(locked["version"], 1);
  ASSERT_EQ(locked["adapters"].size(), 2u);
  EXPECT_EQ(
      locked["adapters"][1],
      (nlohmann::json{{"name", "b"}, {"base", "base"}, {"path", "/adapters/b"}, {"sha256", "22"}}));

  book.Remove("b");
  book.Remove("absent");
  EXPECT_EQ(Locked()["adapters"].size(), 1u);
}

TEST_F(AdapterBookTest, AChangeThatCannotBeLockedIsNone) {
  AdapterBook book(Source(), dir_ / "absent" / "adapters.lock");
  const auto error = ErrorOf([&] { book.Put({"a", "base", "/adapters/a", "11", 8}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);  // the folder
  EXPECT_TRUE(book.List().empty());
}

}  // namespace
}  // namespace tandem::server
