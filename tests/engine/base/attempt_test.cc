#include "engine/base/attempt.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>

namespace tandem {
namespace {

struct Retryable : Error {
  using Error::Error;
};

Error NotFound() {
  return Error(ErrorCode::kNotFound, "no such file").WithParam("path").WithReason("gone");
}

TEST(AttemptTest, EveryExceptionBecomesAnErrorAtABorder) {
  EXPECT_FALSE(Attempt([] {}));
  const auto known = Attempt([] { throw NotFound(); });
  ASSERT_TRUE(known);
  EXPECT_EQ(known->code(), ErrorCode::kNotFound);
  EXPECT_EQ(known->param(), "path");
  const auto memory = Attempt([] { throw std::bad_alloc(); });
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(memory->reason(), "out_of_memory");
  const auto thread = Attempt([] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  ASSERT_TRUE(thread);
  EXPECT_EQ(thread->reason(), "out_of_memory");
  const auto other = Attempt([] { throw std::runtime_error("no luck"); });
  ASSERT_TRUE(other);
  EXPECT_EQ(other->code(), ErrorCode::kInternal);
  EXPECT_STREQ(other->what(), "no luck");
  const auto foreign = Attempt([] { throw 1; });
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->code(), ErrorCode::kInternal);
}

TEST(AttemptTest, AnErrorOfAnotherCodePassesWithItsDerivedType) {
  const auto fall_back = [](const auto& action) {
    return ErrorOf({ErrorCode::kNotFound, ErrorCode::kAlreadyExists}, action);
  };
  EXPECT_TRUE(fall_back([] { throw NotFound(); }));
  EXPECT_THROW(fall_back([] { throw Retryable(ErrorCode::kIo, "disk"); }), Retryable);
  EXPECT_THROW(fall_back([] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(AttemptTest, AFailedAllocationIsNoErrorToFallBackOn) {
  EXPECT_THROW(ErrorOf([] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(AttemptTest, OnlyTheNamedExceptionOfALibraryIsHandled) {
  const auto refused = ExceptionOf<std::out_of_range>([] { throw std::out_of_range("at 3"); });
  ASSERT_TRUE(refused);
  EXPECT_STREQ(refused->what(), "at 3");
  EXPECT_THROW(ExceptionOf<std::out_of_range>([] { throw std::length_error("long"); }),
               std::length_error);
}

TEST(AttemptTest, ContextIsAddedToAPassingErrorOnly) {
  const int seven = WithContext("reading a.json: ", [] { return 7; });
  EXPECT_EQ(seven, 7);
  const auto error =
      ErrorOf([] { WithContext(std::string("reading a.json: "), [] { throw NotFound(); }); });
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(), "reading a.json: no such file");
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
  EXPECT_EQ(error->param(), "path");
  EXPECT_EQ(error->reason(), "gone");
  EXPECT_THROW(WithContext("x: ", [] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(AttemptTest, AContextCanReplaceTheError) {
  const auto as_data_loss = [](const Error& error) {
    return Error(ErrorCode::kDataLoss, error.what());
  };
  const auto error = ErrorOf([&] { WithContext(as_data_loss, [] { throw NotFound(); }); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kDataLoss);
}

TEST(AttemptTest, WorkIsUndoneOnlyWhenAnExceptionPasses) {
  int n_undone = 0;
  EXPECT_EQ(UndoOnFailure([] { return 7; }, [&] { ++n_undone; }), 7);
  EXPECT_EQ(n_undone, 0);
  EXPECT_THROW(UndoOnFailure([] { throw std::bad_alloc(); }, [&] { ++n_undone; }), std::bad_alloc);
  EXPECT_EQ(n_undone, 1);
}

TEST(AttemptTest, AFaultKeepsItsTypeForAnotherThread) {
  EXPECT_EQ(FaultOf([] {}), nullptr);
  const std::exception_ptr fault = FaultOf([] { throw Retryable(ErrorCode::kIo, "disk"); });
  EXPECT_THROW(std::rethrow_exception(fault), Retryable);
}

}  // namespace
}  // namespace tandem
