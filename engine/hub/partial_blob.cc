#include "engine/hub/partial_blob.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

constexpr size_t kBlobReadBytes = size_t{1} << 20;

}  // namespace

void PartialBlob::FreeHash::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

PartialBlob::PartialBlob(std::filesystem::path path, const BlobIdentity& identity,
                         const OnRead& on_read)
    : path_(std::move(path)),
      identity_(identity),
      file_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)) {
  if (file_.get() < 0) ThrowSystemError("open", path_, errno);
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) ThrowSystemError("inspect", path_, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, path_.string() + " is not a regular file");
  }
  BeginHash();
  if (static_cast<uint64_t>(status.st_size) > identity_.size) {
    Restart();
    return;
  }
  was_resumed_ = status.st_size > 0;
  if (!hash_) {
    size_ = static_cast<uint64_t>(status.st_size);
    if (lseek(file_.get(), 0, SEEK_END) < 0) ThrowSystemError("read", path_, errno);
    if (on_read) on_read(size_);
    return;
  }
  std::vector<char> buffer(was_resumed_ ? kBlobReadBytes : 1);
  for (;;) {
    const ssize_t n = read(file_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowSystemError("read", path_, errno);
    if (n == 0) break;
    Hash(std::span(buffer).first(static_cast<size_t>(n)));
    size_ += static_cast<uint64_t>(n);
    if (on_read) on_read(static_cast<size_t>(n));
  }
}

PartialBlob::~PartialBlob() = default;

void PartialBlob::BeginHash() {
  if (identity_.hash == BlobIdentity::Hash::kNone) return;
  const bool is_git = identity_.hash == BlobIdentity::Hash::kGitSha1;
  hash_.reset(EVP_MD_CTX_new());
  TANDEM_CHECK(hash_ != nullptr);
  TANDEM_CHECK(EVP_DigestInit_ex(hash_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (!is_git) return;
  // git hashes "blob <size>", a zero byte and the content.
  const std::string head = "blob " + std::to_string(identity_.size);
  Hash(std::span(head.c_str(), head.size() + 1));
}

void PartialBlob::Hash(std::span<const char> bytes) {
  if (hash_) TANDEM_CHECK(EVP_DigestUpdate(hash_.get(), bytes.data(), bytes.size()) == 1);
}

void PartialBlob::Append(std::span<const char> bytes) {
  TANDEM_CHECK(bytes.size() <= identity_.size - size_);
  WriteAll(file_, std::as_bytes(bytes), path_);
  Hash(bytes);
  size_ += bytes.size();
}

void PartialBlob::Restart() {
  if (ftruncate(file_.get(), 0) != 0 || lseek(file_.get(), 0, SEEK_SET) < 0) {
    ThrowSystemError("empty", path_, errno);
  }
  size_ = 0;
  was_resumed_ = false;
  BeginHash();
}

bool PartialBlob::Verify() {
  TANDEM_CHECK(size_ == identity_.size);
  if (!hash_) return true;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int n_bytes = 0;
  TANDEM_CHECK(EVP_DigestFinal_ex(hash_.get(), digest.data(), &n_bytes) == 1);
  constexpr char kDigits[] = "0123456789abcdef";
  found_hex_.clear();
  for (unsigned int i = 0; i < n_bytes; ++i) {
    found_hex_ += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  }
  if (found_hex_ == identity_.hex) return true;
  Restart();
  return false;
}

void PartialBlob::Publish(const std::filesystem::path& path) {
  Sync(file_, path_);
  if (rename(path_.c_str(), path.c_str()) != 0) ThrowSystemError("rename to", path, errno);
  file_.Close(path);
  SyncPath(ParentOf(path));
}

}  // namespace tandem::engine
