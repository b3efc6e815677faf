#include "server/models/adapter_host.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/memory_ledger.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

class AdapterHostTest : public testing::Test {
 protected:
  AdapterHostTest() {
    registry_.SetLoader([this](const std::string& name, const Viewer&) {
      ++n_asked_;
      host_.LoadShared(name);
    });
  }
  ~AdapterHostTest() override { registry_.Clear(); }

  void ServeModel(const std::string& id) {
    auto model = std::make_shared<ServedModel>();
    model->id = id;
    std::vector<NameClaim> names;
    names.push_back(registry_.Claim(id));
    registry_.Publish(model, std::move(names));
  }

  // SQLite has the same statements as the database of replicas.
  DatabaseSource Source() const { return {.file = dir_ / "tandem.db"}; }

  tests::TemporaryDir dir_;
  int n_asked_ = 0;
  ModelRegistry registry_{false};
  MemoryLedger ledger_{1 << 20};
  AdapterHost host_{registry_, ledger_, nullptr, {}, std::make_unique<AdapterBook>(Source())};
};

// The loader of the registry waits for the lock that the look at the book holds.
TEST_F(AdapterHostTest, ALookAtTheBookLoadsNoBase) {
  ServeModel("base");
  ServeModel("tales");
  AdapterBook there(Source());
  there.Put({"other", "base", "/adapters/other", "22", 7});
  there.Put({"tales", "other", "/adapters/tales", "11", 8});

  host_.FollowBook();

  EXPECT_EQ(n_asked_, 0);
  ASSERT_EQ(host_.Unloaded().size(), 1u);
  EXPECT_EQ(host_.Unloaded()[0].name, "other");
}

}  // namespace
}  // namespace tandem::server
