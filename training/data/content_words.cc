#include "training/data/content_words.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "training/data/order/permutation.h"

namespace tandem::training {
namespace {

constexpr size_t kCandidates = 8;
constexpr int kMaxWords = 3;
constexpr size_t kMinLetters = 3;

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
char Lower(char c) { return IsUpper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

// Function words, and words of every story (auxiliaries, "said", "once", …).
const std::unordered_set<std::string_view>& StopWords() {
  static const std::unordered_set<std::string_view> words = {
      "about",      "above",   "after",   "again",      "all",     "almost",   "along",
      "also",       "always",  "and",     "another",    "any",     "anymore",  "are",
      "around",     "asked",   "away",    "back",       "because", "been",     "before",
      "began",      "behind",  "being",   "below",      "best",    "better",   "between",
      "both",       "but",     "called",  "came",       "can",     "cannot",   "come",
      "could",      "couldn",  "day",     "days",       "decided", "did",      "didn",
      "does",       "doesn",   "doing",   "don",        "done",    "down",     "each",
      "else",       "end",     "enough",  "even",       "ever",    "every",    "everyone",
      "everything", "far",     "feel",    "felt",       "few",     "finally",  "find",
      "first",      "for",     "found",   "from",       "get",     "gets",     "getting",
      "gave",       "give",    "goes",    "going",      "gone",    "good",     "got",
      "had",        "hadn",    "has",     "have",       "having",  "hear",     "heard",
      "her",        "here",    "hers",    "herself",    "him",     "himself",  "his",
      "how",        "inside",  "into",    "isn",        "its",     "itself",   "just",
      "keep",       "kept",    "knew",    "know",       "last",    "later",    "learned",
      "leave",      "left",    "let",     "like",       "liked",   "little",   "lived",
      "long",       "look",    "looked",  "looking",    "lot",     "lots",     "loved",
      "made",       "make",    "makes",   "making",     "many",    "may",      "maybe",
      "might",      "more",    "most",    "much",       "must",    "myself",   "named",
      "near",       "need",    "needed",  "never",      "new",     "next",     "nice",
      "not",        "nothing", "now",     "off",        "often",   "okay",     "old",
      "once",       "one",     "only",    "onto",       "other",   "others",   "our",
      "out",        "outside", "over",    "own",        "people",  "put",      "quickly",
      "ran",        "ready",   "really",  "replied",    "right",   "run",      "said",
      "same",       "saw",     "say",     "says",       "see",     "seen",     "she",
      "should",     "show",    "showed",  "smiled",     "some",    "someone",  "something",
      "soon",       "started", "still",   "stop",       "stopped", "such",     "sure",
      "take",       "takes",   "tell",    "than",       "thank",   "thanked",  "that",
      "the",        "their",   "them",    "themselves", "then",    "there",    "these",
      "they",       "thing",   "things",  "think",      "this",    "those",    "though",
      "thought",    "three",   "through", "time",       "times",   "together", "told",
      "too",        "took",    "tried",   "try",        "trying",  "turned",   "two",
      "under",      "until",   "upon",    "use",        "used",    "very",     "walked",
      "want",       "wanted",  "wants",   "was",        "wasn",    "way",      "well",
      "went",       "were",    "what",    "when",       "where",   "which",    "while",
      "who",        "why",     "will",    "with",       "without", "won",      "would",
      "wouldn",     "yes",     "yet",     "you",        "your",    "yours",    "yourself",
      "always",     "from",
  };
  return words;
}

// Calls visit(lower-case word, had a capital, starts a sentence) for each run of letters. Letters
// after an apostrophe ("don't", "Tom's") belong to the word before and are dropped.
template <class Visit>
void ForEachWord(std::string_view text, const Visit& visit) {
  bool sentence_start = true;
  std::string word;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (!IsLetter(c)) {
      // Quotes begin sentences of their own: "Let's play," said Tom.
      if (c == '.' || c == '!' || c == '?' || c == '"' || c == '\n') sentence_start = true;
      ++i;
      continue;
    }
    word.clear();
    const bool capital = IsUpper(c);
    while (i < text.size() && IsLetter(text[i])) word.push_back(Lower(text[i++]));
    visit(word, capital, sentence_start);
    sentence_start = false;
    if (i + 1 < text.size() && text[i] == '\'' && IsLetter(text[i + 1])) {
      ++i;
      while (i < text.size() && IsLetter(text[i])) ++i;
    }
  }
}

}  // namespace

ContentWords::ContentWords(const TextCorpus& corpus, int64_t max_samples) {
  n_documents_ = std::min(corpus.size(), max_samples);
  std::unordered_set<std::string> seen;
  for (int64_t i = 0; i < n_documents_; ++i) {
    seen.clear();
    ForEachWord(corpus.sample(i), [&](const std::string& word, bool capital, bool starts) {
      Statistics& statistics = words_[word];
      if (seen.insert(word).second) ++statistics.documents;
      if (!capital) ++statistics.lower;
      if (capital && !starts) ++statistics.capitalised;
    });
  }
}

std::vector<std::string> ContentWords::Rank(std::string_view story, size_t limit) const {
  std::map<std::string, int> counts;  // sorted, so that ties follow the alphabet
  ForEachWord(story, [&](const std::string& word, bool, bool) { ++counts[word]; });

  // A word of only one or two stories teaches nothing for other stories.
  const int64_t min_documents = std::min<int64_t>(3, 1 + n_documents_ / 100);
  std::vector<std::pair<double, std::string>> ranked;
  for (const auto& [word, count] : counts) {
    if (word.size() < kMinLetters || StopWords().contains(word)) continue;
    const auto it = words_.find(word);
    if (it == words_.end() || it->second.documents < min_documents) continue;
    if (it->second.capitalised >= it->second.lower) continue;  // a name
    const double idf =
        std::log(static_cast<double>(n_documents_ + 1) / static_cast<double>(it->second.documents));
    ranked.emplace_back((1 + std::log(count)) * idf, word);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (ranked.size() > limit) ranked.resize(limit);
  std::vector<std::string> words;
  for (auto& entry : ranked) words.push_back(std::move(entry.second));
  return words;
}

std::string ContentWords::Header(std::string_view story, uint64_t seed, int64_t sample) const {
  std::vector<std::string> candidates = Rank(story, kCandidates);
  uint64_t counter = static_cast<uint64_t>(sample) * (kMaxWords + 1);
  const auto draw = [&](uint64_t n) { return HashCounter(seed, counter++) % n; };

  const size_t wanted = std::min<size_t>(draw(kMaxWords + 1), candidates.size());
  for (size_t i = 0; i < wanted; ++i) {
    std::swap(candidates[i], candidates[i + draw(candidates.size() - i)]);
  }
  candidates.resize(wanted);
  return FormatContentWords(candidates);
}

std::string FormatContentWords(const std::vector<std::string>& words) {
  if (words.empty()) return {};
  std::string line = "Words: ";
  for (size_t i = 0; i < words.size(); ++i) line += (i > 0 ? ", " : "") + words[i];
  return line + "\n";
}

}  // namespace tandem::training
