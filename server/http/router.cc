#include "server/http/router.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tandem::server {
namespace {

// "/a/b" -> {"a", "b"}; "/a/" -> {"a", ""}: a trailing slash makes a different path.
std::vector<std::string> Segments(std::string_view path) {
  std::vector<std::string> out;
  if (path.empty() || path == "/") return out;
  size_t begin = 1;
  for (;;) {
    const size_t end = path.find('/', begin);
    out.emplace_back(path.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

bool IsParam(std::string_view segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

// A pattern has at most one `{x+}`, which takes all surplus segments, so no search is needed.
bool Matches(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
             std::map<std::string, std::string>& params) {
  size_t at = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (at >= path.size()) return false;
    if (!IsParam(pattern[i])) {
      if (pattern[i] != path[at++]) return false;
      continue;
    }
    std::string name = pattern[i].substr(1, pattern[i].size() - 2);
    size_t n = 1;
    if (name.back() == '+') {
      name.pop_back();
      const size_t behind = pattern.size() - i - 1;
      if (path.size() - at <= behind) return false;
      n = path.size() - at - behind;
    }
    std::string value = path[at];
    for (size_t k = 1; k < n; ++k) value += "/" + path[at + k];
    at += n;
    if (value.empty()) return false;
    params[name] = std::move(value);
  }
  return at == path.size();
}

}  // namespace

Router::Router(std::vector<Route> routes) {
  for (Route& route : routes) {
    TANDEM_CHECK(route.pattern.starts_with('/'));
    std::vector<std::string> segments = Segments(route.pattern);
    auto found = std::find_if(patterns_.begin(), patterns_.end(),
                              [&](const Pattern& p) { return p.segments == segments; });
    if (found == patterns_.end()) {
      Pattern fresh;
      fresh.n_literals = static_cast<size_t>(
          std::count_if(segments.begin(), segments.end(),
                        [](const std::string& segment) { return !IsParam(segment); }));
      fresh.segments = std::move(segments);
      found = patterns_.insert(patterns_.end(), std::move(fresh));
    }
    found->routes.push_back(std::move(route));
  }
  std::stable_sort(patterns_.begin(), patterns_.end(),
                   [](const Pattern& a, const Pattern& b) { return a.n_literals > b.n_literals; });
}

Router::Match Router::Find(std::string_view method, std::string_view path) const {
  Match match;
  const std::vector<std::string> segments = Segments(path);
  for (const Pattern& pattern : patterns_) {
    std::map<std::string, std::string> params;
    if (!Matches(pattern.segments, segments, params)) continue;
    const std::string_view wanted = method == "HEAD" ? std::string_view("GET") : method;
    for (const Route& route : pattern.routes) {
      if (!match.allow.empty()) match.allow += ", ";
      match.allow += route.method;
      if (route.method == "GET") match.allow += ", HEAD";
      if (route.method == wanted) match.route = &route;
    }
    match.allow += ", OPTIONS";
    match.params = std::move(params);
    return match;
  }
  return match;
}

const ApiStyle* Router::StyleOf(std::string_view path) const {
  const std::vector<std::string> segments = Segments(path);
  for (const Pattern& pattern : patterns_) {
    std::map<std::string, std::string> params;
    if (Matches(pattern.segments, segments, params)) return pattern.routes.front().style;
  }
  return nullptr;
}

}  // namespace tandem::server
