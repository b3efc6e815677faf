#include "training/data/tok_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/crc32c.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view kMagic = "TANDTOK\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 4096;  // padded with spaces, so that sections are aligned
constexpr size_t kAlign = 8;
constexpr int64_t kNarrowVocabulary = 65536;

std::span<const std::byte> Bytes(const void* data, size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

template <class Int>
Int Load(const std::byte* at) {
  Int value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

[[noreturn]] void Broken(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, name + ": " + what + "; prepare it again");
}

// Prepared files without the field are of version 1.
int64_t EncoderVersionOf(const ordered_json& options) {
  const auto version = options.is_object() ? options.find("encoder_version") : options.end();
  return version == options.end() || !version->is_number_integer() ? 1 : version->get<int64_t>();
}

size_t Padded(size_t bytes) { return RoundUp<size_t>(bytes, kAlign); }

}  // namespace

TokWriter::TokWriter(fs::path path, TokIdentity identity)
    : path_(std::move(path)),
      temporary_(path_.string() + ".tmp-" + std::to_string(getpid())),
      identity_(std::move(identity)),
      out_(temporary_, std::ios::binary | std::ios::trunc),
      is_wide_(identity_.vocab_size > kNarrowVocabulary) {
  const std::string blank(kHeaderBytes, ' ');
  out_.write(blank.data(), static_cast<std::streamsize>(blank.size()));
  if (!out_) throw Error(ErrorCode::kIo, temporary_.string() + ": cannot be written");
}

TokWriter::~TokWriter() {
  std::error_code ignored;
  if (!is_published_) fs::remove(temporary_, ignored);
}

void TokWriter::Put(const void* data, size_t bytes) {
  crc_ = engine::Crc32c(crc_, Bytes(data, bytes));
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  bytes_ += static_cast<int64_t>(bytes);
}

void TokWriter::PutTokens(const Sample& sample) {
  if (is_wide_) {
    Put(sample.tokens.data(), sample.tokens.size() * sizeof(TokenId));
    return;
  }
  const std::vector<uint16_t> narrow(sample.tokens.begin(), sample.tokens.end());
  Put(narrow.data(), narrow.size() * sizeof(uint16_t));
}

void TokWriter::PutMask(const Sample& sample) {
  uint64_t bit = offsets_.back();
  mask_.resize((bit + sample.trained.size() + 7) / 8);
  for (const uint8_t trained : sample.trained) {
    if (trained != 0) mask_[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
    ++bit;
  }
}

void TokWriter::Add(const Sample& sample) {
  for (const TokenId id : sample.tokens) TANDEM_CHECK(id >= 0 && id < identity_.vocab_size);
  PutTokens(sample);
  PutMask(sample);
  offsets_.push_back(offsets_.back() + sample.tokens.size());
}

void TokWriter::Finish() {
  constexpr std::array<char, kAlign> zeros{};
  const auto pad = [&] {
    const auto written = static_cast<size_t>(bytes_);
    Put(zeros.data(), Padded(written) - written);
  };
  pad();
  mask_.resize((offsets_.back() + 7) / 8);
  Put(mask_.data(), mask_.size());
  pad();
  Put(offsets_.data(), offsets_.size() * sizeof(uint64_t));

  const ordered_json json = {{"samples", offsets_.size() - 1},
                             {"tokens", offsets_.back()},
                             {"token_bytes", is_wide_ ? 4 : 2},
                             {"vocab_size", identity_.vocab_size},
                             {"tokenizer_sha256", identity_.tokenizer_sha256},
                             {"template_sha256", identity_.template_sha256},
                             {"options", identity_.options},
                             {"crc32c", crc_}};
  std::string header(kMagic);
  header.append(reinterpret_cast<const char*>(&kVersion), sizeof kVersion);
  const std::string text = json.dump();
  header += text;
  if (header.size() + sizeof(uint32_t) > kHeaderBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "the data options do not fit into the header of a prepared file");
  }
  header.resize(kHeaderBytes - sizeof(uint32_t), ' ');
  const uint32_t crc = engine::Crc32c(0, Bytes(header.data(), header.size()));
  header.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  out_.seekp(0);
  out_.write(header.data(), static_cast<std::streamsize>(header.size()));
  out_.close();
  if (!out_) throw Error(ErrorCode::kIo, temporary_.string() + ": cannot be written");
  engine::SyncPath(temporary_);
  fs::rename(temporary_, path_);
  is_published_ = true;
  engine::SyncPath(engine::ParentOf(path_));
  bytes_ += kHeaderBytes;
}

bool TokFile::IsTokFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, kMagic.size()> magic{};
  in.read(magic.data(), magic.size());
  return in && std::string_view(magic.data(), magic.size()) == kMagic;
}

TokFile::TokFile(std::shared_ptr<const engine::MappedFile> file) : file_(std::move(file)) {}

std::unique_ptr<TokFile> TokFile::Open(const fs::path& path, const TokIdentity& identity) {
  std::unique_ptr<TokFile> tok(new TokFile(engine::MappedFile::Open(path)));
  const std::string name = path.string();
  tok->ReadHeader(name);
  tok->CheckIdentity(identity, name);
  tok->CheckBody(name);
  return tok;
}

void TokFile::ReadHeader(const std::string& name) {
  const std::span<const std::byte> bytes = file_->bytes();
  if (bytes.size() < kHeaderBytes) Broken(name, "the prepared file has no complete header");
  const size_t sealed = kHeaderBytes - sizeof(uint32_t);
  const auto version = Load<uint32_t>(bytes.data() + kMagic.size());
  if (engine::Crc32c(0, bytes.first(sealed)) != Load<uint32_t>(bytes.data() + sealed)) {
    Broken(name, "the header of the prepared file is damaged");
  }
  if (version != kVersion) {
    throw Error(ErrorCode::kUnsupported,
                name + ": version " + std::to_string(version) +
                    " of prepared files is not supported; prepare it again");
  }
  const size_t begin = kMagic.size() + sizeof kVersion;
  const ordered_json json = engine::ParseUntrustedJson(
      {reinterpret_cast<const char*>(bytes.data()) + begin, sealed - begin}, name);
  constexpr auto kMost = static_cast<int64_t>(1) << 48;
  n_samples_ = engine::JsonInt(json, "samples", 1, kMost, name);
  n_tokens_ = engine::JsonInt(json, "tokens", 1, kMost, name);
  is_wide_ = engine::JsonInt(json, "token_bytes", 2, 4, name) == 4;
  identity_.vocab_size = engine::JsonInt(json, "vocab_size", 1, kMost, name);
  identity_.tokenizer_sha256 = engine::JsonStringOr(json, "tokenizer_sha256", "", name);
  identity_.template_sha256 = engine::JsonStringOr(json, "template_sha256", "", name);
  identity_.options = engine::JsonStringOr(json, "options", "", name);

  const auto n = static_cast<size_t>(n_tokens_);
  const size_t mask_at = kHeaderBytes + Padded(n * (is_wide_ ? 4 : 2));
  const size_t offsets_at = mask_at + Padded((n + 7) / 8);
  if (bytes.size() != offsets_at + (static_cast<size_t>(n_samples_) + 1) * sizeof(uint64_t)) {
    Broken(name, "the prepared file has " + std::to_string(bytes.size()) +
                     " bytes, which contradicts its header");
  }
  tokens_ = bytes.data() + kHeaderBytes;
  mask_ = bytes.data() + mask_at;
  offsets_ = bytes.data() + offsets_at;
  const auto crc = static_cast<uint32_t>(engine::JsonInt(json, "crc32c", 0, UINT32_MAX, name));
  if (engine::Crc32c(0, bytes.subspan(kHeaderBytes)) != crc) {
    Broken(name, "the prepared file is damaged (CRC-32C)");
  }
}

void TokFile::CheckIdentity(const TokIdentity& identity, const std::string& name) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                name + ": was prepared " + what + "; run `tandem data prepare` again");
  };
  if (identity.tokenizer_sha256 != identity_.tokenizer_sha256) refuse("with a different tokenizer");
  if (identity.template_sha256 != identity_.template_sha256)
    refuse("with a different chat template");
  if (identity.options == identity_.options) return;
  const ordered_json now = ordered_json::parse(identity.options);
  const ordered_json then = engine::ParseUntrustedJson(identity_.options, name);
  const int64_t version = EncoderVersionOf(now);
  const int64_t its_version = EncoderVersionOf(then);
  if (its_version != version) {
    refuse("by a program that encodes rows differently (encoder_version " +
           std::to_string(its_version) + ", now " + std::to_string(version) + ")");
  }
  std::string differences;
  for (const auto& [key, value] : now.items()) {
    const ordered_json was = then.is_object() ? then.value(key, ordered_json()) : ordered_json();
    if (was == value) continue;
    differences += (differences.empty() ? "" : ", ") + key + " " + Quoted(was.dump(), 60) +
                   ", now " + Quoted(value.dump(), 60);
  }
  refuse("with different options (" + differences + ")");
}

// Checks the contents: the CRC does not detect a wrong file of another program.
void TokFile::CheckBody(const std::string& name) const {
  uint64_t before = Offset(0);
  if (before != 0 || Offset(n_samples_) != static_cast<uint64_t>(n_tokens_)) {
    Broken(name, "the samples of the prepared file do not cover it");
  }
  for (int64_t i = 1; i <= n_samples_; ++i) {
    if (Offset(i) < before) Broken(name, "the samples of the prepared file overlap");
    before = Offset(i);
  }
  for (int64_t t = 0; t < n_tokens_; ++t) {
    const int64_t id = is_wide_ ? Load<TokenId>(tokens_ + t * 4) : Load<uint16_t>(tokens_ + t * 2);
    if (id < 0 || id >= identity_.vocab_size) {
      Broken(name, "the prepared file has token " + std::to_string(id) +
                       ", beyond its vocabulary of " + std::to_string(identity_.vocab_size));
    }
  }
}

uint64_t TokFile::Offset(int64_t i) const {
  return Load<uint64_t>(offsets_ + i * static_cast<int64_t>(sizeof(uint64_t)));
}

Sample TokFile::Make(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < n_samples_);
  const uint64_t begin = Offset(i);
  const uint64_t end = Offset(i + 1);
  Sample sample;
  sample.tokens.reserve(end - begin);
  sample.trained.reserve(end - begin);
  for (uint64_t t = begin; t < end; ++t) {
    sample.tokens.push_back(is_wide_ ? Load<TokenId>(tokens_ + t * 4)
                                     : static_cast<TokenId>(Load<uint16_t>(tokens_ + t * 2)));
    sample.trained.push_back(
        static_cast<uint8_t>((static_cast<uint8_t>(mask_[t / 8]) >> (t % 8)) & 1));
  }
  return sample;
}

}  // namespace tandem::training
