#include "engine/tokenizer/readers/sentencepiece.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <unordered_set>

#include "engine/base/quoted.h"
#include "engine/base/sentencepiece_type.h"
#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/files/protobuf_reader.h"
#include "engine/tokenizer/models/bpe.h"
#include "engine/tokenizer/models/unigram.h"
#include "engine/tokenizer/pipeline_tokenizer.h"

// The file is a protobuf message: pieces with scores and types in the order of their ids, the
// trainer's options, and the normaliser's options. Field numbers are those of
// sentencepiece_model.proto.
namespace tandem::engine {
namespace {

constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kMostPieceBytes = 16 << 20;  // in all; a trie takes a few dozen bytes for each

using Piece = SentencePieceList::Piece;

enum class ModelType { kUnigram = 1, kBpe = 2 };

struct ModelProto {
  std::string file;
  std::vector<Piece> pieces;
  ModelType type = ModelType::kUnigram;
  bool byte_fallback = false;
  std::string_view bos = "<s>", eos = "</s>";
  SentencePieceOptions normalizer;
  std::string_view charsmap;

  std::string Where(size_t i) const { return "pieces[" + std::to_string(i) + "]"; }
};

void ReadPiece(std::string_view bytes, ModelProto& model) {
  const std::string where = model.Where(model.pieces.size());
  ProtobufReader reader(bytes, model.file, where);
  Piece piece;
  while (const auto field = reader.Next()) {
    if (field->number == 1) piece.text = reader.Bytes(*field);
    if (field->number == 2) piece.score = reader.Float(*field);
    if (field->number == 3) {
      const int32_t type = reader.Int32(*field);
      if (type < 1 || type > 6) {
        ThrowBroken(model.file, where, "has the unknown type " + std::to_string(type));
      }
      piece.type = static_cast<SentencePieceType>(type);
    }
  }
  if (piece.text.empty()) ThrowBroken(model.file, where, "is empty");
  if (piece.text.size() > kLongestRanked) {
    ThrowBroken(model.file, where,
                "must be at most " + std::to_string(kLongestRanked) + " bytes, got " +
                    std::to_string(piece.text.size()));
  }
  if (ValidUtf8Prefix(piece.text) != piece.text.size()) {
    ThrowBroken(model.file, where, "must be UTF-8");
  }
  if (!std::isfinite(piece.score)) ThrowBroken(model.file, where, "must have a finite score");
  if (model.pieces.size() >= static_cast<size_t>(Vocabulary::kMostTokens) / 2) {
    ThrowBroken(model.file, where,
                "exceeds the limit of " + std::to_string(Vocabulary::kMostTokens / 2) + " pieces");
  }
  model.pieces.push_back(piece);
}

void ReadTrainerSpec(std::string_view bytes, ModelProto& model) {
  ProtobufReader reader(bytes, model.file, "trainer_spec");
  while (const auto field = reader.Next()) {
    if (field->number == 3) {
      const int32_t type = reader.Int32(*field);
      if (type != 1 && type != 2) {
        ThrowUnsupported(
            model.file, "trainer_spec.model_type",
            "is " + std::to_string(type) + ": only UNIGRAM (1) and BPE (2) are supported");
      }
      model.type = static_cast<ModelType>(type);
    }
    if (field->number == 24 && reader.Bool(*field)) {
      ThrowUnsupported(model.file, "trainer_spec.treat_whitespace_as_suffix", "is not supported");
    }
    if (field->number == 35) model.byte_fallback = reader.Bool(*field);
    if (field->number == 46) model.bos = reader.Bytes(*field);
    if (field->number == 47) model.eos = reader.Bytes(*field);
  }
}

void ReadNormalizerSpec(std::string_view bytes, ModelProto& model) {
  ProtobufReader reader(bytes, model.file, "normalizer_spec");
  while (const auto field = reader.Next()) {
    if (field->number == 2) model.charsmap = reader.Bytes(*field);
    if (field->number == 3) model.normalizer.add_dummy_prefix = reader.Bool(*field);
    if (field->number == 4) model.normalizer.remove_extra_whitespaces = reader.Bool(*field);
    if (field->number == 5) model.normalizer.escape_whitespaces = reader.Bool(*field);
  }
}

void RefuseDenormalizer(std::string_view bytes, const ModelProto& model) {
  ProtobufReader reader(bytes, model.file, "denormalizer_spec");
  while (const auto field = reader.Next()) {
    if (field->number == 2 && !reader.Bytes(*field).empty()) {
      ThrowUnsupported(model.file, "denormalizer_spec.precompiled_charsmap", "is not supported");
    }
  }
}

ModelProto ReadModelProto(std::string_view bytes, const std::string& file) {
  if (bytes.size() > kMostBytes) {
    ThrowBroken(file, "the file",
                "must be at most " + std::to_string(kMostBytes) + " bytes, got " +
                    std::to_string(bytes.size()));
  }
  ModelProto model;
  model.file = file;
  ProtobufReader reader(bytes, file, "the model");
  size_t piece_bytes = 0;
  while (const auto field = reader.Next()) {
    if (field->number == 1) {
      ReadPiece(reader.Bytes(*field), model);
      piece_bytes += model.pieces.back().text.size();
    }
    if (field->number == 2) ReadTrainerSpec(reader.Bytes(*field), model);
    if (field->number == 3) ReadNormalizerSpec(reader.Bytes(*field), model);
    if (field->number == 5) RefuseDenormalizer(reader.Bytes(*field), model);
  }
  if (model.pieces.empty()) ThrowBroken(file, "pieces", "are missing");
  if (piece_bytes > kMostPieceBytes) {
    ThrowBroken(file, "pieces",
                "must be at most " + std::to_string(kMostPieceBytes) + " bytes in total, got " +
                    std::to_string(piece_bytes));
  }
  return model;
}

std::optional<TokenId> FindUnknown(const ModelProto& model) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type == SentencePieceType::kUnknown) return static_cast<TokenId>(i);
  }
  return std::nullopt;
}

// Characters inside pieces that are not pieces themselves; merges need them as symbols.
std::vector<std::string> BareCharacters(const ModelProto& model, const Vocabulary& vocabulary) {
  std::vector<std::string> bare;
  std::unordered_set<std::string> seen;
  for (const Piece& piece : model.pieces) {
    if (piece.type != SentencePieceType::kNormal && piece.type != SentencePieceType::kUnused)
      continue;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t size = DecodeUtf8(piece.text.data() + i).size;
      std::string character(piece.text.substr(i, size));
      i += size;
      if (vocabulary.tokens().Find(character) >= 0 || !seen.insert(character).second) continue;
      bare.push_back(std::move(character));
    }
  }
  return bare;
}

// Any two symbols that together spell a piece may merge. The piece of the greatest score merges
// first, the leftmost on a tie.
std::unique_ptr<TokenModel> BuildBpe(const ModelProto& model, const Vocabulary& vocabulary) {
  const std::vector<std::string> bare = BareCharacters(model, vocabulary);
  const size_t n_pieces = model.pieces.size();
  TokenTable tokens(n_pieces + bare.size(), static_cast<TokenId>(n_pieces + bare.size()));
  std::vector<float> scores;
  for (size_t i = 0; i < n_pieces; ++i) {
    const Piece& piece = model.pieces[i];
    if (piece.type == SentencePieceType::kUnused) {
      ThrowUnsupported(model.file, model.Where(i),
                       Quoted(piece.text) + " of type UNUSED is not supported with BPE");
    }
    if (piece.type != SentencePieceType::kNormal && piece.type != SentencePieceType::kUserDefined)
      continue;
    tokens.Insert(piece.text, static_cast<TokenId>(i));
    if (piece.type == SentencePieceType::kNormal) scores.push_back(piece.score);
  }
  for (size_t i = 0; i < bare.size(); ++i) {
    tokens.Insert(bare[i], static_cast<TokenId>(n_pieces + i));
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<std::pair<TokenId, uint32_t>> ranked;
  for (size_t i = 0; i < n_pieces; ++i) {
    if (model.pieces[i].type != SentencePieceType::kNormal) continue;
    const auto rank =
        std::lower_bound(scores.begin(), scores.end(), model.pieces[i].score, std::greater<>());
    ranked.emplace_back(static_cast<TokenId>(i), static_cast<uint32_t>(rank - scores.begin()));
  }
  PairTable merges = MergesByRank(tokens, ranked);
  const BpeOptions options{.byte_level = false,
                           .byte_fallback = model.byte_fallback,
                           .unk = FindUnknown(model),
                           .fuse_unk = true,
                           .first_bare_symbol = static_cast<TokenId>(n_pieces)};
  return std::make_unique<BpeModel>(options, std::move(tokens), std::move(merges),
                                    vocabulary.ByteTokens(), vocabulary.control_ids());
}

std::unique_ptr<TokenModel> BuildUnigram(const ModelProto& model, const Vocabulary& vocabulary) {
  constexpr float kUnknownPenalty = 10;
  std::vector<double> scores;
  std::vector<TokenId> unreachable = vocabulary.control_ids();
  float least = FLT_MAX;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    scores.push_back(piece.score);
    if (piece.type == SentencePieceType::kNormal) least = std::min(least, piece.score);
    // The added-token matcher finds user-defined pieces before the model sees the text.
    if (piece.type != SentencePieceType::kNormal) unreachable.push_back(static_cast<TokenId>(i));
  }
  if (least == FLT_MAX) ThrowBroken(model.file, "pieces", "must include one of type NORMAL");
  const UnigramOptions options{.unk = FindUnknown(model),
                               .byte_fallback = model.byte_fallback,
                               .unk_score = least - kUnknownPenalty,
                               .single_precision = true};
  TokenTable tokens = vocabulary.tokens();
  return std::make_unique<UnigramModel>(options, std::move(tokens), std::move(scores),
                                        vocabulary.ByteTokens(), unreachable);
}

Vocabulary ReadPieces(const ModelProto& model) {
  Vocabulary vocabulary(model.file, /*byte_level=*/false, model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<TokenId>(i);
    const bool is_text = piece.type == SentencePieceType::kNormal ||
                         piece.type == SentencePieceType::kUnused ||
                         piece.type == SentencePieceType::kUserDefined;
    if (vocabulary.Find(piece.text) ||
        !(is_text ? vocabulary.Add(piece.text, id) : vocabulary.AddUnreachable(piece.text, id))) {
      ThrowBroken(model.file, model.Where(i), "repeats " + Quoted(piece.text));
    }
    const bool special =
        piece.type == SentencePieceType::kControl || piece.type == SentencePieceType::kUnknown;
    if (!special && piece.type != SentencePieceType::kUserDefined) continue;
    vocabulary.AddAddedToken(
        {.content = std::string(piece.text), .id = id, .special = special, .normalized = !special},
        model.Where(i));
  }
  return vocabulary;
}

std::shared_ptr<const PieceTrie> UserDefined(const ModelProto& model) {
  std::vector<std::pair<std::string_view, TokenId>> kept;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type == SentencePieceType::kUserDefined) {
      kept.emplace_back(model.pieces[i].text, static_cast<TokenId>(i));
    }
  }
  return kept.empty() ? nullptr : std::make_shared<PieceTrie>(std::move(kept));
}

Decoder MakeDecoder(const ModelProto& model, const Vocabulary& vocabulary) {
  Decoder decoder;
  std::unordered_set<std::string> bytes;
  for (const Piece& piece : model.pieces) {
    if (piece.type == SentencePieceType::kByte) bytes.emplace(piece.text);
  }
  const std::array<TokenId, 256> byte_tokens = vocabulary.ByteTokens();
  std::unordered_map<std::string, char> byte_of;
  for (size_t b = 0; b < byte_tokens.size(); ++b) {
    if (byte_tokens[b] < 0) continue;
    const std::string text(model.pieces[static_cast<size_t>(byte_tokens[b])].text);
    if (bytes.contains(text)) byte_of.emplace(text, static_cast<char>(b));
  }
  decoder.steps.push_back([byte_of = std::move(byte_of)](std::string piece, TokenPlace) {
    if (const auto it = byte_of.find(piece); it != byte_of.end()) return std::string(1, it->second);
    for (size_t at = piece.find(kMetaspace); at != std::string::npos;
         at = piece.find(kMetaspace, at + 1)) {
      piece.replace(at, kMetaspace.size(), " ");
    }
    return piece;
  });
  if (model.normalizer.remove_extra_whitespaces) {
    decoder.rules.push_back({.kind = TextRule::Kind::kStrip, .from = " ", .start = SIZE_MAX});
  }
  return decoder;
}

std::optional<TokenId> FindControl(const ModelProto& model, std::string_view text) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].text != text) continue;
    if (model.pieces[i].type != SentencePieceType::kControl) return std::nullopt;
    return static_cast<TokenId>(i);
  }
  return std::nullopt;
}

}  // namespace

LoadedSentencePiece LoadSentencePiece(std::string_view bytes, const std::string& file) {
  ModelProto model = ReadModelProto(bytes, file);
  if (!model.charsmap.empty()) {
    model.normalizer.charsmap = std::make_shared<Charsmap>(
        Charsmap::Parse(model.charsmap, file, "normalizer_spec.precompiled_charsmap"));
  }
  model.normalizer.kept = UserDefined(model);
  const Vocabulary vocabulary = ReadPieces(model);
  const std::array<TokenId, 256> byte_tokens = vocabulary.ByteTokens();
  if (model.byte_fallback &&
      std::any_of(byte_tokens.begin(), byte_tokens.end(), [](TokenId id) { return id < 0; })) {
    ThrowBroken(file, "trainer_spec.byte_fallback", "needs a piece for each of the 256 bytes");
  }
  if (!model.byte_fallback && !FindUnknown(model)) {
    ThrowBroken(file, "pieces", "must include one of type UNKNOWN");
  }

  LoadedSentencePiece loaded;
  loaded.is_bpe = model.type == ModelType::kBpe;
  loaded.bos = FindControl(model, model.bos);
  loaded.eos = FindControl(model, model.eos);
  TokenizerParts parts;
  parts.Take(vocabulary);
  parts.model = loaded.is_bpe ? BuildBpe(model, vocabulary) : BuildUnigram(model, vocabulary);
  parts.decoder = MakeDecoder(model, vocabulary);
  parts.normalizes_added_tokens = false;
  parts.strips_leading_space =
      model.normalizer.add_dummy_prefix && !model.normalizer.remove_extra_whitespaces;
  parts.normalizer = Normalizer({SentencePieceStep(model.normalizer)});
  loaded.tokenizer = std::make_unique<PipelineTokenizer>(std::move(parts));
  return loaded;
}

SentencePieceList ListSentencePieces(std::string_view bytes, const std::string& file) {
  ModelProto model = ReadModelProto(bytes, file);
  return {.pieces = std::move(model.pieces),
          .is_bpe = model.type == ModelType::kBpe,
          .add_dummy_prefix = model.normalizer.add_dummy_prefix,
          .remove_extra_whitespaces = model.normalizer.remove_extra_whitespaces,
          .charsmap = model.charsmap};
}

}  // namespace tandem::engine
