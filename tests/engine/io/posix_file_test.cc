#include "engine/io/posix_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>

namespace tandem::engine {
namespace {

ErrorCode CodeOf(int error_number) {
  try {
    ThrowSystemError("open", "some/file", error_number);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("could not open some/file: "), std::string::npos);
    return error.code();
  }
}

TEST(PosixFile, WhatTheSystemSaysIsToldApart) {
  EXPECT_EQ(CodeOf(ENOENT), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(EACCES), ErrorCode::kIo);
  EXPECT_EQ(CodeOf(ENOSPC), ErrorCode::kIo);
  EXPECT_THROW(ThrowSystemError("open", "some/file", ENOMEM), std::bad_alloc);
}

}  // namespace
}  // namespace tandem::engine
