// JSON values out of memory: parsed, copied and destroyed.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/out_of_memory.h"
#include "server/wire/field_reader.h"
#include "tests/out_of_memory/failing_new.h"

namespace tandem::server {
namespace {

const char* const kBody =
    R"({"messages":[{"role":"user","content":[{"type":"text","text":"a long enough text to be on the heap"}]},)"
    R"({"role":"assistant","content":"b","tool_calls":[[[],[{}],{"a":[1,2,[3]]}]]}],"n":1,"x":{"y":{"z":[]}}})";

// Both kinds: objects that keep the order of their names, and objects that sort them.
template <class Kind>
class JsonOutOfMemoryTest : public testing::Test {};
using Kinds = testing::Types<nlohmann::ordered_json, nlohmann::json>;
TYPED_TEST_SUITE(JsonOutOfMemoryTest, Kinds);

// Only allocations of this thread fail, including those of destructors.
TYPED_TEST(JsonOutOfMemoryTest, NoFailedAllocationEndsTheProgram) {
  using Json = TypeParam;
  bool has_failed = true;
  int64_t k = 0;
  while (has_failed) {
    const tests::FailAllocation failure(++k);
    HasMemoryFor([&] {
      const Json body = Json::parse(kBody);
      Json copy = body;
      copy["more"] = Json::array({"an element that is on the heap too", copy});
      copy["messages"].clear();
    });
    has_failed = failure.has_failed();
  }
  EXPECT_GT(k, 50);
}

TYPED_TEST(JsonOutOfMemoryTest, DestroyingAValueAllocatesNothing) {
  auto body = std::make_unique<TypeParam>(TypeParam::parse(kBody));
  const tests::FailAllocation failure(1);
  body.reset();
  EXPECT_FALSE(failure.has_failed());
}

TYPED_TEST(JsonOutOfMemoryTest, AValueOfAnyDepthIsDestroyedWithoutRecursion) {
  using Json = TypeParam;
  Json value;
  for (int i = 0; i < 1'000'000; ++i) {
    Json outer = i % 2 == 0 ? Json::array() : Json::object();
    if (i % 2 == 0) {
      outer.push_back(std::move(value));
    } else {
      outer["a"] = std::move(value);
    }
    value = std::move(outer);
  }
  value = nullptr;
  EXPECT_TRUE(value.is_null());
}

TEST(RequestBodyOutOfMemoryTest, NoFailedAllocationOfItsParserEndsTheProgram) {
  bool has_failed = true;
  for (int64_t k = 1; has_failed; ++k) {
    const tests::FailAllocation failure(k);
    HasMemoryFor([&] { ParseJsonObject(kBody); });
    has_failed = failure.has_failed();
  }
}

}  // namespace
}  // namespace tandem::server
