// Decides which tensors each file of a target holds, before any file is written.

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "convert/work/tensor_files.h"
#include "engine/base/disk_full.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/stored/stacked_tensors.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

// No reader accepts tensors with more axes.
constexpr size_t kMaxStackedAxes = 31;

const engine::NamedTensor& TensorAt(const ModelSource& source, int64_t index) {
  return source.tensors()[static_cast<size_t>(index)];
}

// Checks that the layers are numbered 0, 1, 2, … and that their tensors have one shape and dtype.
bool AreAlike(const ModelSource& source, const std::map<int64_t, int64_t>& of_layer) {
  const engine::ConstTensorView& first = TensorAt(source, of_layer.begin()->second).view;
  if (first.shape.size() > kMaxStackedAxes) return false;
  int64_t expected = 0;
  return std::all_of(of_layer.begin(), of_layer.end(), [&](const auto& entry) {
    const engine::ConstTensorView& view = TensorAt(source, entry.second).view;
    return entry.first == expected++ && view.dtype == first.dtype && view.shape == first.shape;
  });
}

int64_t BytesOf(const OutTensor& tensor) {
  return static_cast<int64_t>(tensor.tensor.view.bytes());
}

}  // namespace

std::vector<OutTensor> EachAlone(const ModelSource& source) {
  std::vector<OutTensor> tensors;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    tensors.push_back({source.tensors()[i], {static_cast<int64_t>(i)}});
  }
  return tensors;
}

std::vector<OutTensor> Stacked(const ModelSource& source) {
  std::vector<OutTensor> tensors;
  std::map<std::string, std::map<int64_t, int64_t>> layers;  // stacked name -> layer -> tensor
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const std::string& name = source.tensors()[i].name;
    const auto index = static_cast<int64_t>(i);
    if (engine::IsStackedName(name)) {
      throw Error(ErrorCode::kUnsupported,
                  source.name() + ": tensor " + Quoted(name) +
                      " has the marker of stacked layers in its name; rename the tensor");
    }
    if (const auto layer = engine::LayerNameOf(name)) {
      layers[layer->stacked][layer->layer] = index;
    } else {
      tensors.push_back({source.tensors()[i], {index}});
    }
  }
  for (const auto& [name, of_layer] : layers) {
    if (!AreAlike(source, of_layer)) {
      for (const auto& [layer, index] : of_layer) {
        tensors.push_back({TensorAt(source, index), {index}});
      }
      continue;
    }
    OutTensor stacked{{name, TensorAt(source, of_layer.begin()->second).view}, {}};
    auto& shape = stacked.tensor.view.shape;
    shape.insert(shape.begin(), static_cast<int64_t>(of_layer.size()));
    for (const auto& [layer, index] : of_layer) stacked.sources.push_back(index);
    tensors.push_back(std::move(stacked));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const OutTensor& a, const OutTensor& b) { return a.tensor.name < b.tensor.name; });
  return tensors;
}

std::vector<OutFile> InShards(std::vector<OutTensor> tensors, const std::string& stem,
                              int64_t max_bytes, bool plain_if_one) {
  std::vector<OutFile> files(1);
  int64_t bytes = 0;
  for (OutTensor& tensor : tensors) {
    if (bytes > 0 && bytes + BytesOf(tensor) > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += BytesOf(tensor);
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char number[64];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, files.size());
    files[i].name = stem + (plain_if_one && files.size() == 1 ? "" : number) + ".safetensors";
  }
  return files;
}

int64_t BytesOf(const std::vector<OutFile>& files) {
  int64_t bytes = 0;
  for (const OutFile& file : files) {
    for (const OutTensor& tensor : file.tensors) bytes += BytesOf(tensor);
  }
  return bytes;
}

void CheckRoom(const fs::path& dir, int64_t bytes) {
  int64_t needed = bytes + bytes / 20;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    struct stat status {};
    if (stat(entry.path().c_str(), &status) == 0 && entry.is_regular_file()) {
      needed -= int64_t{status.st_blocks} * 512;
    }
  }
  const int64_t free = engine::FreeDiskBytes(dir);
  if (free >= needed) return;
  throw Error(ErrorCode::kIo, dir.string() + ": the target needs " + std::to_string(needed) +
                                  " bytes, but the disk has " + std::to_string(free) +
                                  " bytes free: make room or choose another disk")
      .WithReason(kDiskFullReason);
}

}  // namespace tandem::convert
