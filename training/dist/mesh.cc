#include "training/dist/mesh.h"

#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

struct NamedAxis {
  const char* name;
  const char* alias;
  AxisRequest MeshRequest::*axis;
};
constexpr std::array<NamedAxis, 4> kAxes = {
    {{"data", "batch", &MeshRequest::data},
     {"fsdp", "fsdp", &MeshRequest::fsdp},
     {"tensor", "model", &MeshRequest::tensor},
     {"tensor_sequence", "tensor_sequence", &MeshRequest::tensor_sequence}}};
constexpr size_t kUnnamedAxes = 3;  // without a name: the first of them

[[noreturn]] void RefuseMesh(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "mesh: " + why);
}

int64_t AxisSize(std::string_view word) {
  int64_t size = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), size);
  if (fault != std::errc() || end != word.data() + word.size() || size == 0 || size < -1 ||
      size > kMostRanks) {
    RefuseMesh("\"" + std::string(word) + "\" must be a number of ranks from 1 to " +
               std::to_string(kMostRanks) + ", or -1 for the rest");
  }
  return size;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kIgnored = " \t[](){}'\"";
  const size_t first = text.find_first_not_of(kIgnored);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kIgnored) - first + 1);
}

void TakeWord(std::string_view word, size_t position, MeshRequest* request) {
  const size_t mark = word.find_first_of("=:");
  if (mark == std::string_view::npos) {
    if (position >= kUnnamedAxes) RefuseMesh("has more than three sizes (data, fsdp, tensor)");
    (request->*kAxes[position].axis).ici = AxisSize(word);
    return;
  }
  const std::string_view name = Trimmed(word.substr(0, mark));
  for (const NamedAxis& axis : kAxes) {
    if (name != axis.name && name != axis.alias) continue;
    (request->*axis.axis).ici = AxisSize(Trimmed(word.substr(mark + 1)));
    return;
  }
  RefuseMesh("unknown axis \"" + std::string(name) +
             "\": the axes are data, fsdp, tensor and tensor_sequence");
}

// Product of the given sizes of all axes, and the -1 if there is one.
struct Sizes {
  int64_t known = 1;
  int64_t* rest = nullptr;
};

void Multiply(const std::string& key, int64_t given, int64_t* size, Sizes* all) {
  if (given != -1) {
    *size *= given;
    all->known *= given;
    if (all->known > kMostRanks) {
      throw Error(ErrorCode::kInvalidArgument,
                  key + ": the mesh has more than " + std::to_string(kMostRanks) + " ranks");
    }
    return;
  }
  if (all->rest != nullptr) {
    throw Error(ErrorCode::kInvalidArgument, key + ": only one axis of the mesh can be -1");
  }
  all->rest = size;
}

}  // namespace

MeshRequest ParseMesh(const std::string& text) {
  MeshRequest request;
  std::string_view left = text;
  for (size_t position = 0;; ++position) {
    const size_t comma = left.find(',');
    const std::string_view word = Trimmed(left.substr(0, comma));
    if (!word.empty()) TakeWord(word, position, &request);
    if (comma == std::string_view::npos) return request;
    left.remove_prefix(comma + 1);
  }
}

std::string ShowMesh(const MeshRequest& request) {
  std::string text;
  for (const NamedAxis& axis : kAxes) {
    const std::optional<int64_t>& size = (request.*axis.axis).ici;
    if (!size) continue;
    if (!text.empty()) text += ',';
    text.append(axis.name).append("=").append(std::to_string(*size));
  }
  return text;
}

Mesh ResolveMesh(const MeshRequest& request, int64_t world) {
  Mesh mesh;
  int64_t sequence = 1;
  const std::array<int64_t*, 4> sizes = {&mesh.data, &mesh.fsdp, &mesh.tensor, &sequence};
  Sizes all;
  for (size_t i = 0; i < kAxes.size(); ++i) {
    const AxisRequest& axis = request.*kAxes[i].axis;
    const std::string key = std::string(kAxes[i].name) + "_parallelism";
    Multiply("ici_" + key, axis.ici.value_or(1), sizes[i], &all);
    Multiply("dcn_" + key, axis.dcn.value_or(1), sizes[i], &all);
  }
  // Data takes the rest unless the spec gives its size.
  if (all.rest == nullptr && !request.data.ici && !request.data.dcn) all.rest = &mesh.data;
  if (all.rest != nullptr && world % all.known == 0) *all.rest *= world / all.known;
  if (mesh.tensor > 1 && sequence > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "ici_tensor_sequence_parallelism: ranks of the tensor axis divide the rows or do "
                "not: set one of ici_tensor_parallelism and ici_tensor_sequence_parallelism to 1");
  }
  mesh.divides_rows = sequence > 1;
  mesh.tensor *= sequence;
  if (mesh.ranks() != world) {
    throw Error(ErrorCode::kInvalidArgument,
                "the mesh (ici_*_parallelism, dcn_*_parallelism, mesh) has data " +
                    std::to_string(mesh.data) + " x fsdp " + std::to_string(mesh.fsdp) +
                    " x tensor " + std::to_string(mesh.tensor) + " = " +
                    std::to_string(mesh.ranks()) + " ranks, but " + std::to_string(world) +
                    (world == 1 ? " runs" : " run") +
                    ": start that many, or set one axis to -1 (the rest)");
  }
  return mesh;
}

}  // namespace tandem::training
