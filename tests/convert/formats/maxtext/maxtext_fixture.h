#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/orbax/orbax_writer.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/kernels/kernels.h"
#include "engine/tensor/tensor.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {

// Models and MaxText checkpoints as arrays by name.
struct Array {
  engine::DType dtype = engine::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  bool operator==(const Array&) const = default;
};
using Arrays = std::map<std::string, Array>;

inline Array ArrayOf(const engine::ConstTensorView& view, std::span<const std::byte> bytes) {
  return {view.dtype, view.shape, {bytes.begin(), bytes.end()}};
}

inline std::vector<float> Floats(const Array& array) {
  std::vector<float> values(static_cast<size_t>(engine::ElementCount(array.shape)));
  engine::ConvertToF32({array.bytes.data(), array.dtype, array.shape}, values);
  return values;
}

inline Arrays TensorsOf(const std::filesystem::path& model) {
  const auto dir = engine::ModelDir::Open(model);
  Arrays arrays;
  for (const std::string& name : dir.tensor_names()) {
    const engine::StoredTensor& tensor = *dir.FindStored(name);
    arrays[name] = ArrayOf(tensor.view, tensor.bytes());
  }
  return arrays;
}

// Without the step and the state of an optimizer.
inline Arrays LeavesOf(const std::filesystem::path& checkpoint_dir) {
  const auto checkpoint = OrbaxCheckpoint::Open(checkpoint_dir);
  Arrays arrays;
  for (const auto& leaf : checkpoint.leaves()) {
    if (!leaf.array || leaf.path[0] != "params") continue;
    Array& array = arrays[leaf.name()];
    array = {*leaf.array->dtype, leaf.array->shape, {}};
    array.bytes.resize(static_cast<size_t>(leaf.array->bytes()));
    checkpoint.Read(leaf, array.bytes);
  }
  return arrays;
}

inline void ExpectSame(const Arrays& is, const Arrays& wanted) {
  for (const auto& [name, array] : wanted) {
    const auto found = is.find(name);
    ASSERT_NE(found, is.end()) << name << " is missing";
    EXPECT_EQ(found->second.dtype, array.dtype) << name;
    EXPECT_EQ(found->second.shape, array.shape) << name;
    EXPECT_TRUE(found->second.bytes == array.bytes) << name << " has other numbers";
  }
  EXPECT_EQ(is.size(), wanted.size());
}

class MaxTextTest : public testing::Test {
 protected:
  MaxTextTest() : pool_(2), ops_(engine::Kernels(), pool_) {}

  ConvertSpec Spec(const std::filesystem::path& source, const std::string& format,
                   const std::filesystem::path& target) const {
    ConvertSpec spec;
    spec.source = source;
    spec.format = format;
    spec.target = target;
    spec.certificate = false;  // the tests compare tensors, which is stricter
    return spec;
  }
  ConvertResult Run(const ConvertSpec& spec) { return Convert(spec, {}, ops_); }
  std::string Fault(const ConvertSpec& spec) {
    try {
      Run(spec);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "was not refused";
    return "";
  }
  void ExpectFault(const ConvertSpec& spec, const std::string& words) {
    const std::string fault = Fault(spec);
    EXPECT_NE(fault.find(words), std::string::npos) << fault;
  }

  // Writes a checkpoint of these leaves as another program would: without our records.
  void WriteCheckpoint(const Arrays& leaves, const std::filesystem::path& dir,
                       const OrbaxStorage& storage = {}) {
    std::filesystem::remove_all(dir);
    OrbaxItemWriter writer(dir / "5" / "items", storage, pool_);
    for (const auto& [name, array] : leaves) {
      OrbaxItemWriter::Path path(1);
      for (const char c : name) {
        if (c == '.') {
          path.emplace_back();
        } else {
          path.back() += c;
        }
      }
      writer.AddArray(path, array.dtype, array.shape, array.bytes);
    }
    writer.AddScalar({"step"}, 5);
    writer.Finish();
    WriteOrbaxStep(dir / "5", "{}", 1);
  }

  tests::TemporaryDir dir_;
  const std::filesystem::path checkpoint_ = dir_.path() / "checkpoint";
  const std::filesystem::path out_ = dir_.path() / "out";
  ThreadPool pool_;
  engine::OpsContext ops_;
};

}  // namespace tandem::convert
