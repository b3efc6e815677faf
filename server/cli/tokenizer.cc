#include "engine/tokenizer/tokenizer.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/tokenizer/bpe_trainer.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCorpusBytes = size_t{16} << 30;
constexpr size_t kMaxFileBytes = size_t{512} << 20;

struct TokenizerFlags {
  std::string corpus;
  std::string out = "tokenizer.json";
  engine::BpeTrainerOptions trainer;
  std::string tokenizer;
  std::string text;
  std::string file;
  bool parse_special = false;
  bool keep_special = false;
  std::string ids;
};

std::optional<std::string> ReadIfThere(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return engine::ReadWholeFile(path, kMaxFileBytes);
}

// A directory with tokenizer files, or a tokenizer.json.
std::unique_ptr<engine::Tokenizer> Load(const std::string& where) {
  engine::TokenizerTexts texts;
  texts.source = where;
  if (fs::is_directory(where)) {
    const fs::path dir(where);
    texts.tokenizer_json = ReadIfThere(dir / "tokenizer.json");
    texts.vocab_json = ReadIfThere(dir / "vocab.json");
    texts.merges_txt = ReadIfThere(dir / "merges.txt");
    texts.tokenizer_config_json = ReadIfThere(dir / "tokenizer_config.json");
  } else {
    texts.tokenizer_json = engine::ReadWholeFile(where, kMaxFileBytes);
  }
  std::optional<engine::TokenizerFiles> files = engine::LoadTokenizer(texts);
  if (!files) throw Error(ErrorCode::kNotFound, where + " holds no tokenizer");
  return std::move(files->tokenizer);
}

std::string InputText(const TokenizerFlags& flags, const std::string& inline_text) {
  if (!flags.file.empty()) return engine::ReadWholeFile(flags.file, kMaxCorpusBytes);
  if (!inline_text.empty() && inline_text != "-") return inline_text;
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

void Train(const TokenizerFlags& flags) {
  const std::string corpus = engine::ReadWholeFile(flags.corpus, kMaxCorpusBytes);
  int64_t shown_percent = -1;
  const std::string json =
      engine::TrainBpe(corpus, flags.trainer, [&](int64_t done, int64_t total) {
        const int64_t percent = total > 0 ? done * 100 / total : 100;
        if (percent / 10 == shown_percent / 10 && shown_percent >= 0) return;
        shown_percent = percent;
        std::fprintf(stderr, "merges %lld of %lld\n", static_cast<long long>(done),
                     static_cast<long long>(total));
      });
  engine::WriteFileAtomically(flags.out, json);
  std::printf("wrote %s\n", flags.out.c_str());
}

void Encode(const TokenizerFlags& flags) {
  const auto tokenizer = Load(flags.tokenizer);
  const std::string text = InputText(flags, flags.text);
  const auto special = flags.parse_special ? engine::SpecialTokens::kParseSpecial
                                           : engine::SpecialTokens::kPlainText;
  bool is_first = true;
  for (const TokenId id : tokenizer->Encode(text, special)) {
    std::printf(is_first ? "%d" : ",%d", id);
    is_first = false;
  }
  std::printf("\n");
}

void Decode(const TokenizerFlags& flags) {
  const auto tokenizer = Load(flags.tokenizer);
  const std::string text = InputText(flags, flags.ids);
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (*at == ',' || *at == ' ' || *at == '\n') {
      ++at;
      continue;
    }
    TokenId id = -1;
    const auto [next, fault] = std::from_chars(at, end, id);
    if (fault != std::errc() || id < 0 || id >= tokenizer->vocab_size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ids must be numbers in [0, " + std::to_string(tokenizer->vocab_size() - 1) +
                      "], got '" + std::string(at, std::min<size_t>(20, text.size())) + "'");
    }
    ids.push_back(id);
    at = next;
  }
  const std::string out = engine::Decode(*tokenizer, ids, !flags.keep_special);
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::printf("\n");
}

}  // namespace

void AddTokenizer(CLI::App& command, int&) {
  const auto flags = std::make_shared<TokenizerFlags>();
  command.require_subcommand(1);

  CLI::App* train = command.add_subcommand("train", "train byte-level BPE on a text file");
  train->add_option("corpus", flags->corpus, "text file")->required()->check(CLI::ExistingFile);
  train->add_option("--vocab-size", flags->trainer.vocab_size, "tokens in all")
      ->check(CLI::Range(257, 1 << 24))
      ->capture_default_str();
  train
      ->add_option("--min-pair-count", flags->trainer.min_pair_count,
                   "pairs seen less often are not merged")
      ->capture_default_str();
  train->add_option("--special", flags->trainer.special_tokens,
                    "control token; repeatable; these get the first ids");
  train->add_option("--out,-o", flags->out, "file to write")->capture_default_str();
  train->callback([flags] { Train(*flags); });

  CLI::App* encode = command.add_subcommand("encode", "print the token ids of a text");
  encode->add_option("text", flags->text, "the text ('-' or nothing: standard input)");
  encode->add_option("--tokenizer,-t", flags->tokenizer, "model directory or tokenizer.json")
      ->required();
  encode->add_option("--file,-f", flags->file, "read the text from a file");
  encode->add_flag("--special", flags->parse_special, "control tokens spelled in the text count");
  encode->callback([flags] { Encode(*flags); });

  CLI::App* decode = command.add_subcommand("decode", "print the text of token ids");
  decode->add_option("ids", flags->ids, "ids: 1,2,3 ('-' or nothing: standard input)");
  decode->add_option("--tokenizer,-t", flags->tokenizer, "model directory or tokenizer.json")
      ->required();
  decode->add_option("--file,-f", flags->file, "read the ids from a file");
  decode->add_flag("--special", flags->keep_special, "print control tokens too");
  decode->callback([flags] { Decode(*flags); });
}

}  // namespace tandem::server
