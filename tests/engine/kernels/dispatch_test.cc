#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/cpu_features.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

namespace tandem::engine {
namespace {

TEST(Dispatch, TablesHaveKeysOfTheirOwnAndTheReferenceComesFirst) {
  const auto tables = RunnableKernelTables();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.front()->key, "reference");
  std::set<std::string_view> keys;
  for (const KernelTable* table : tables) {
    EXPECT_TRUE(keys.insert(table->key).second) << table->key;
    EXPECT_TRUE(table->key.starts_with(table->isa));
  }
}

#ifdef __x86_64__
TEST(Dispatch, TablesWithASlowDotOfPairsComeBeforeThoseThatWidenPairs) {
  CpuFeatures cpu = {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_vnni = true};
  EXPECT_EQ(VectorTables(cpu).back()->key, "avx512+bf16+vnni");
  cpu.slow_bf16_dot = true;
  EXPECT_EQ(VectorTables(cpu).back()->key, "avx512+vnni");
  cpu.amx_int8 = true;
  EXPECT_EQ(VectorTables(cpu).back()->key, "avx512+vnni+amx");
  cpu.slow_bf16_dot = false;
  EXPECT_EQ(VectorTables(cpu).back()->key, "avx512+bf16+vnni+amx");
}
#endif

// A process chooses its table once, so each case runs in a child.
int ForcedIsaStatus(const char* isa) {
  setenv("TANDEM_FORCE_ISA", isa, 1);
  try {
    return Kernels().isa == isa ? 0 : 1;
  } catch (const Error& e) {
    return e.code() == ErrorCode::kInvalidArgument ? 2 : 3;
  }
}

TEST(DispatchDeathTest, ForcedIsaIsTakenOrRefused) {
  GTEST_FLAG_SET(death_test_style, "fast");
  for (const KernelTable* table : RunnableKernelTables()) {
    EXPECT_EXIT(std::exit(ForcedIsaStatus(std::string(table->isa).c_str())),
                testing::ExitedWithCode(0), "");
  }
  EXPECT_EXIT(std::exit(ForcedIsaStatus("sse9")), testing::ExitedWithCode(2), "");
}

TEST(DispatchDeathTest, WithoutForceTheBestTableIsTaken) {
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(
      {
        unsetenv("TANDEM_FORCE_ISA");
        std::exit(&Kernels() == RunnableKernelTables().back() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem::engine
