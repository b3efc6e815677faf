#include "training/dist/mpi_transport.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "training/dist/mpi/tandem_mpi_abi.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "Debian: apt-get install libopenmpi-dev openmpi-bin, then build tandem again, which makes "
    "tandem_mpi.so beside the program; TANDEM_MPI_PLUGIN names another place";

[[noreturn]] void RefusePlugin(const std::string& why) {
  throw Error(
      ErrorCode::kFailedPrecondition,
      "training on several ranks needs the plug-in tandem_mpi.so: " + why + ". " + kInstall);
}

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const TandemMpiFunctions& mpi) : mpi_(mpi) {
    Check("MPI_Init_thread", mpi_.init(&rank_, &size_));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void AllToAll(const std::byte* send, std::byte* receive, int64_t bytes) override {
    Check("MPI_Ialltoall", mpi_.all_to_all(group_, send, receive, static_cast<int>(bytes)));
  }
  void AllGather(const std::byte* send, std::byte* receive, int64_t bytes) override {
    Check("MPI_Iallgather", mpi_.all_gather(group_, send, receive, static_cast<int>(bytes)));
  }
  void Broadcast(std::byte* data, int64_t bytes, int root) override {
    Check("MPI_Ibcast", mpi_.broadcast(group_, data, static_cast<int>(bytes), root));
  }
  void Barrier() override { Check("MPI_Ibarrier", mpi_.barrier(group_)); }
  std::unique_ptr<Transport> Split(int color) override {
    auto part = std::make_unique<MpiTransport>(*this);
    Check("MPI_Comm_split", mpi_.split(group_, color, &part->group_, &part->rank_, &part->size_));
    return part;
  }
  void Finish() override { Check("MPI_Finalize", mpi_.finalize()); }
  void Abort() override {}  // an MPI call cannot be interrupted: the process must end

 private:
  void Check(const char* call, int code) const {
    if (code == 0) return;
    char text[512] = "";
    mpi_.describe(code, text, sizeof text);
    throw Error(ErrorCode::kUnavailable,
                std::string(call) + " failed on rank " + std::to_string(rank_) + ": " + text);
  }

  const TandemMpiFunctions& mpi_;
  int group_ = 0;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::vector<fs::path> MpiPluginPaths() {
  if (const char* given = std::getenv("TANDEM_MPI_PLUGIN"); given != nullptr && *given != '\0') {
    return {given};
  }
  std::error_code unknown;
  return MpiPluginPathsOf(fs::read_symlink("/proc/self/exe", unknown));
}

std::vector<fs::path> MpiPluginPathsOf(const fs::path& program) {
  const fs::path dir = program.parent_path();
  return {dir / "tandem_mpi.so", dir.parent_path() / "lib" / "tandem" / "tandem_mpi.so"};
}

std::unique_ptr<Transport> OpenMpiTransport(const std::vector<fs::path>& plugins) {
  if (getauxval(AT_BASE) == 0) {
    throw Error(ErrorCode::kUnsupported,
                "this program is the static build, which cannot load MPI: train on several ranks "
                "with the Debian package or a build from source");
  }
  std::string tried;
  for (const fs::path& path : plugins) {
    if (!fs::exists(path)) {
      tried += (tried.empty() ? "no file " : ", ") + path.string();
      continue;
    }
    // MPI's own plug-ins look for its symbols globally. Never closed: MPI keeps threads.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) RefusePlugin(dlerror());
    using Functions = const TandemMpiFunctions* (*)();
    const auto functions = reinterpret_cast<Functions>(dlsym(library, kTandemMpiSymbol));
    if (functions == nullptr || functions()->version != kTandemMpiVersion) {
      RefusePlugin(path.string() + " belongs to another version of tandem");
    }
    return std::make_unique<MpiTransport>(*functions());
  }
  RefusePlugin(tried);
}

}  // namespace tandem::training
