#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// Levenshtein distance: characters to add, remove or replace. Chooses "did you mean" suggestions.
inline size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// The known word closest to a misspelt one; empty if none is close. A typo has at most one edit per
// three characters, or two edits in a short word.
inline std::string NearestWord(std::string_view word, const std::vector<std::string>& known) {
  const auto nearest =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return EditDistance(word, a) < EditDistance(word, b);
      });
  const size_t most = std::max<size_t>(2, word.size() / 3);
  return nearest == known.end() || EditDistance(word, *nearest) > most ? "" : *nearest;
}

// "; did you mean NEAREST?", or nothing if no known word is close.
inline std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

}  // namespace tandem
