#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::training {

// Sizes of one mesh axis as a spec gives them: ranks within a host and across hosts (MaxText's ici_
// and dcn_). -1: the rest of the ranks. Absent: 1, or for data the rest when no axis is -1.
struct AxisRequest {
  std::optional<int64_t> ici;
  std::optional<int64_t> dcn;
};

struct MeshRequest {
  AxisRequest data;
  AxisRequest fsdp;
  AxisRequest tensor;
  AxisRequest tensor_sequence;  // tensor, whose ranks also divide rows; one of both exceeds 1
};

// The grid of ranks. Tensor is the innermost axis, data the outermost.
struct Mesh {
  int64_t data = 1;
  int64_t fsdp = 1;
  int64_t tensor = 1;
  bool divides_rows = false;  // tensor is the request's tensor_sequence

  int64_t ranks() const { return data * fsdp * tensor; }
};

// Reads "data=2,fsdp=1,tensor=-1", or sizes in this order: "2,1,-1". `tensor_sequence` has no place
// in that order. `batch` and `model` are other names of data and tensor. Throws kInvalidArgument
// naming the bad word.
MeshRequest ParseMesh(const std::string& text);
// The spelling that ParseMesh reads; empty when no axis is given.
std::string ShowMesh(const MeshRequest& request);

// The grid of `world` ranks. Throws kInvalidArgument naming the keys when the sizes do not give
// `world`.
Mesh ResolveMesh(const MeshRequest& request, int64_t world);

}  // namespace tandem::training
