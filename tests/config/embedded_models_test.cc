#include "config/embedded_models.h"

#include <gtest/gtest.h>

#include "engine/base/attempt.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::config {
namespace {

TEST(EmbeddedModels, AWrittenModelOpensLikeTheEmbeddedOne) {
  const tests::TemporaryDir dir;
  WriteEmbeddedModel(kDefaultModel, dir / "models" / "stories");

  const engine::ModelDir written = engine::ModelDir::Open(dir / "models" / "stories");
  EXPECT_EQ(written.tensor_names(), OpenEmbeddedModel(kDefaultModel)->tensor_names());
}

// The first fine-tuning job writes the model: the server answers 507, not 500.
TEST(EmbeddedModels, AFullDiskIsNamedAndLeavesNoModel) {
  const tests::TemporaryDir dir;
  const std::optional<Error> error = [&] {
    const tests::FullDisk full;
    return ErrorOf([&] { WriteEmbeddedModel(kDefaultModel, dir / "stories"); });
  }();

  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_EQ(error->reason(), "insufficient_storage");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace tandem::config
