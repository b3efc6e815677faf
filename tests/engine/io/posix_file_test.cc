#include "engine/io/posix_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>

#include "engine/base/attempt.h"

namespace tandem::engine {
namespace {

Error ErrorFor(int error_number) {
  const auto error = ErrorOf([&] { ThrowSystemError("open", "some/file", error_number); });
  EXPECT_NE(std::string(error->what()).find("could not open some/file: "), std::string::npos);
  return *error;
}

TEST(PosixFile, WhatTheSystemSaysIsToldApart) {
  EXPECT_EQ(ErrorFor(ENOENT).code(), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorFor(EACCES).code(), ErrorCode::kIo);
  EXPECT_EQ(ErrorFor(EACCES).reason(), "");
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(ErrorFor(full).code(), ErrorCode::kIo);
    EXPECT_EQ(ErrorFor(full).reason(), "insufficient_storage");
  }
  EXPECT_THROW(ThrowSystemError("open", "some/file", ENOMEM), std::bad_alloc);
}

}  // namespace
}  // namespace tandem::engine
