#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {

// Conversions in a temporary directory.
class ConversionTest : public testing::Test {
 protected:
  ConversionTest() : pool_(2), ops_(engine::Kernels(), pool_) {}

  ConvertSpec Spec(const std::filesystem::path& source, const std::string& format,
                   const std::string& name = "out") const {
    ConvertSpec spec;
    spec.source = source;
    spec.format = format;
    spec.certificate = false;  // certificate_test.cc covers certificates of all families
    spec.target = dir_.path() / name;
    return spec;
  }
  ConvertResult Run(const ConvertSpec& spec, const JobContext& context = {}) {
    return Convert(spec, context, ops_);
  }
  std::optional<Error> Fault(const ConvertSpec& spec, const JobContext& context = {}) {
    try {
      Run(spec, context);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "was not refused";
    return Error(ErrorCode::kInternal, "not refused");
  }
  void ExpectFault(const ConvertSpec& spec, ErrorCode code, const std::string& word) {
    const auto fault = Fault(spec);
    EXPECT_EQ(fault->code(), code) << fault->what();
    EXPECT_NE(std::string(fault->what()).find(word), std::string::npos) << fault->what();
  }
  static std::string Text(const std::filesystem::path& file) {
    return engine::ReadWholeFile(file, size_t{1} << 30);
  }
  // All files of a directory except records of when and from where it was made.
  static std::map<std::string, std::string> Contents(const std::filesystem::path& dir) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      const std::string name = entry.path().filename().string();
      if (name != "convert.json") contents[name] = Text(entry.path());
    }
    return contents;
  }
  static void ExpectSameContents(const std::map<std::string, std::string>& is,
                                 const std::map<std::string, std::string>& wanted) {
    for (const auto& [name, text] : is) EXPECT_TRUE(wanted.contains(name)) << name;
    for (const auto& [name, text] : wanted) {
      ASSERT_TRUE(is.contains(name)) << name;
      EXPECT_TRUE(is.at(name) == text) << name << " differs";
    }
  }
  // Whether the files keep all experts of a layer in one tensor.
  static bool HasStacks(const std::filesystem::path& model) {
    const auto names = engine::ModelDir::Open(model).tensor_names();
    return std::any_of(names.begin(), names.end(), [](const std::string& name) {
      const size_t at = name.find(".experts.");
      const bool is_one = at != name.npos && std::isdigit(static_cast<unsigned char>(name[at + 9]));
      return (at != name.npos && !is_one) || name.find(".input_linear.") != name.npos;
    });
  }
  static void ExpectSameTensors(const std::filesystem::path& a, const std::filesystem::path& b) {
    const auto before = engine::ModelDir::Open(a);
    const auto after = engine::ModelDir::Open(b);
    ASSERT_EQ(after.tensor_names(), before.tensor_names());
    for (const std::string& tensor : before.tensor_names()) {
      const engine::StoredTensor& was = *before.FindStored(tensor);
      const engine::StoredTensor& is = *after.FindStored(tensor);
      EXPECT_EQ(is.view.dtype, was.view.dtype) << tensor;
      EXPECT_EQ(is.view.shape, was.view.shape) << tensor;
      EXPECT_TRUE(std::ranges::equal(is.bytes(), was.bytes())) << tensor;
    }
  }

  tests::TemporaryDir dir_;
  ThreadPool pool_;
  engine::OpsContext ops_;
};

}  // namespace tandem::convert
