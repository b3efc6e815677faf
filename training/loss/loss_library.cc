#include "training/loss/loss_library.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <array>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSymbol = "tandem_loss_functions";
constexpr size_t kErrorBytes = 512;

// The library's own words, which end within the buffer whatever it wrote.
std::string WordsIn(std::array<char, kErrorBytes>& error) {
  error.back() = '\0';
  const std::string words(error.data());
  return words.empty() ? "the library gives no reason" : Quoted(words);
}

[[noreturn]] void Fail(ErrorCode code, const std::string& name, const std::string& what) {
  throw Error(code, "train.loss_library: " + name + ": " + what);
}

}  // namespace

std::shared_ptr<LossLibrary> LossLibrary::Open(const fs::path& path, const std::string& options) {
  const std::string name = path.string();
  if (getauxval(AT_BASE) == 0) {
    Fail(ErrorCode::kUnsupported, name,
         "this program is the static build, which cannot load libraries: use the Debian package or "
         "a build from source");
  }
  if (!fs::is_regular_file(path)) Fail(ErrorCode::kNotFound, name, "is no file");
  // A name without a slash would be searched for in the system's directories. Never closed, so that
  // code that the library left behind, such as a thread, stays valid.
  void* library = dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Fail(ErrorCode::kUnsupported, name, dlerror());
  using Functions = const TandemLossFunctions* (*)();
  const auto functions = reinterpret_cast<Functions>(dlsym(library, kSymbol));
  if (functions == nullptr) {
    Fail(ErrorCode::kUnsupported, name,
         std::string("has no ") + kSymbol + "; see training/loss/tandem_loss.h");
  }
  const TandemLossFunctions* table = functions();
  if (table == nullptr || table->version != TANDEM_LOSS_VERSION) {
    Fail(ErrorCode::kUnsupported, name,
         "is built for another version of tandem_loss.h; this program has version " +
             std::to_string(TANDEM_LOSS_VERSION));
  }
  if (table->open == nullptr || table->compute == nullptr) {
    Fail(ErrorCode::kUnsupported, name, "has no function open or compute");
  }
  std::array<char, kErrorBytes> error = {};
  void* loss = table->open(options.c_str(), error.data(), error.size());
  if (loss == nullptr) {
    Fail(ErrorCode::kInvalidArgument, name, "refuses train.loss_options: " + WordsIn(error));
  }
  return std::shared_ptr<LossLibrary>(new LossLibrary(name, *table, loss));
}

LossLibrary::~LossLibrary() {
  if (functions_.close != nullptr) functions_.close(loss_);
}

double LossLibrary::Compute(const TandemLossBatch& batch, std::span<float> gradients) {
  std::array<char, kErrorBytes> error = {};
  double sum = 0;
  if (functions_.compute(loss_, &batch, &sum, gradients.data(), error.data(), error.size()) != 0) {
    Fail(ErrorCode::kInternal, name_, "failed: " + WordsIn(error));
  }
  return sum;
}

}  // namespace tandem::training
