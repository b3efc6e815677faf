// Randomised subspace iteration (Halko, Martinsson, Tropp 2011). Q spans M times a random block;
// each turn of M Mᵀ moves it towards M's largest singular vectors. With Z = Mᵀ Q = Q₂ R, the matrix
// Q Zᵀ is M in that space. R is small enough for one-sided Jacobi.
//
// One task computes each sum in a fixed order, so that the number of threads changes no bit.

#include "convert/formats/peft/truncated_svd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"
#include "engine/tensor/split_mix.h"

namespace tandem::convert {
namespace {

// Turns of M Mᵀ: they weaken a direction outside the wanted ones by (σ'/σ)^7.
constexpr int kTurns = 3;
// Extra columns, without which the last wanted ones converge slowly.
constexpr int64_t kMoreColumns = 8;
constexpr uint64_t kSeed = 0x7461'6e64'656d;
// If subtracting earlier columns leaves less than this part of a column, only rounding errors are
// left.
constexpr double kNothingLeft = 1e-13;
constexpr int kMostSweeps = 60;
constexpr double kOrthogonal = 1e-15;

// Rows and columns per task, so that its results stay in the L1 cache.
constexpr int64_t kRowsOfTask = 8;
constexpr int64_t kColumnsOfTask = 64;

// Columns [count, length], stored one after the other.
struct Block {
  int64_t length = 0;
  int64_t count = 0;
  std::vector<double> values;

  Block(int64_t length_of_each, int64_t n)
      : length(length_of_each), count(n), values(static_cast<size_t>(length_of_each * n)) {}
  double* column(int64_t i) { return values.data() + i * length; }
  const double* column(int64_t i) const { return values.data() + i * length; }
};

// Returns numbers in [-1, 1) that depend only on their position.
Block RandomBlock(int64_t length, int64_t count) {
  Block block(length, count);
  uint64_t state = kSeed;
  for (double& value : block.values) {
    value = static_cast<double>(engine::SplitMix64(state) >> 11) * 0x1p-52 - 1;
    state += engine::kSplitMixStep;
  }
  return block;
}

// Returns the transpose [cols, rows] of [rows, cols].
std::vector<double> Turned(const double* from, int64_t rows, int64_t cols) {
  std::vector<double> to(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[static_cast<size_t>(c * rows + r)] = from[r * cols + c];
  }
  return to;
}

void AddTo(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Uses four sums, which fit in one vector register.
double Dot(const double* a, const double* b, int64_t n) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

class Matrix {
 public:
  Matrix(std::span<const float> values, int64_t rows, int64_t cols, ThreadPool& pool)
      : values_(values.data()), rows_(rows), cols_(cols), pool_(pool) {}

  // Returns M X; X has columns of length `cols`, the result of length `rows`.
  Block Times(const Block& x) const {
    const std::vector<double> from = Turned(x.values.data(), x.count, cols_);
    std::vector<double> to(static_cast<size_t>(rows_ * x.count));
    InTasks(rows_, kRowsOfTask, [&](int64_t first, int64_t end) {
      for (int64_t c = 0; c < cols_; ++c) {
        for (int64_t r = first; r < end; ++r) {
          AddTo(to.data() + r * x.count, values_[r * cols_ + c], from.data() + c * x.count,
                x.count);
        }
      }
    });
    return FromRows(to, rows_, x.count);
  }

  // Returns Mᵀ Y; Y has columns of length `rows`, the result of length `cols`.
  Block TransposedTimes(const Block& y) const {
    const std::vector<double> from = Turned(y.values.data(), y.count, rows_);
    std::vector<double> to(static_cast<size_t>(cols_ * y.count));
    InTasks(cols_, kColumnsOfTask, [&](int64_t first, int64_t end) {
      for (int64_t r = 0; r < rows_; ++r) {
        for (int64_t c = first; c < end; ++c) {
          AddTo(to.data() + c * y.count, values_[r * cols_ + c], from.data() + r * y.count,
                y.count);
        }
      }
    });
    return FromRows(to, cols_, y.count);
  }

 private:
  template <typename Body>
  void InTasks(int64_t n, int64_t of_task, const Body& body) const {
    pool_.ParallelFor((n + of_task - 1) / of_task, [&](int64_t task, int) {
      body(task * of_task, std::min(n, (task + 1) * of_task));
    });
  }
  static Block FromRows(const std::vector<double>& rows, int64_t length, int64_t count) {
    Block block(0, 0);
    block.length = length;
    block.count = count;
    block.values = Turned(rows.data(), length, count);
    return block;
  }

  const float* values_;
  const int64_t rows_, cols_;
  ThreadPool& pool_;
};

// Subtracts from column j its components along earlier columns, and adds them to `along` [j].
void TakeAway(Block* x, int64_t j, double* along, ThreadPool& pool) {
  if (j == 0) return;
  std::vector<double> parts(static_cast<size_t>(j));
  pool.ParallelFor(j, [&](int64_t i, int) {
    parts[static_cast<size_t>(i)] = Dot(x->column(i), x->column(j), x->length);
  });
  constexpr int64_t kLength = 1024;
  pool.ParallelFor((x->length + kLength - 1) / kLength, [&](int64_t task, int) {
    const int64_t first = task * kLength;
    const int64_t count = std::min(kLength, x->length - first);
    for (int64_t i = 0; i < j; ++i) {
      AddTo(x->column(j) + first, -parts[static_cast<size_t>(i)], x->column(i) + first, count);
    }
  });
  for (int64_t i = 0; i < j; ++i) along[i] += parts[static_cast<size_t>(i)];
}

// Makes the columns orthonormal; a column that depends on earlier ones becomes 0. Returns R [count,
// count] with X before = X after * R. Two subtractions are enough (Giraud, Langou, Rozložník 2005).
Block Orthonormalise(Block* x, ThreadPool& pool) {
  Block r(x->count, x->count);
  for (int64_t j = 0; j < x->count; ++j) {
    double* column = x->column(j);
    const double before = std::sqrt(Dot(column, column, x->length));
    TakeAway(x, j, r.column(j), pool);
    TakeAway(x, j, r.column(j), pool);
    const double left = std::sqrt(Dot(column, column, x->length));
    const bool is_nothing = !(left > kNothingLeft * before);
    for (int64_t i = 0; i < x->length; ++i) column[i] = is_nothing ? 0 : column[i] / left;
    r.column(j)[j] = is_nothing ? 0 : left;
  }
  return r;
}

// Rotates columns a and b of both blocks so that W's become orthogonal. Returns false if they
// already were.
bool Rotate(Block* w, Block* j, int64_t a, int64_t b) {
  const int64_t n = w->length;
  const double aa = Dot(w->column(a), w->column(a), n);
  const double bb = Dot(w->column(b), w->column(b), n);
  const double ab = Dot(w->column(a), w->column(b), n);
  if (!(std::abs(ab) > kOrthogonal * std::sqrt(aa) * std::sqrt(bb))) return false;
  const double zeta = (bb - aa) / (2 * ab);
  const double tangent = std::copysign(1 / (std::abs(zeta) + std::hypot(1, zeta)), zeta);
  const double cosine = 1 / std::hypot(1, tangent), sine = cosine * tangent;
  for (Block* block : {w, j}) {
    double *x = block->column(a), *y = block->column(b);
    for (int64_t i = 0; i < block->length; ++i) {
      const double was = x[i];
      x[i] = cosine * was - sine * y[i];
      y[i] = sine * was + cosine * y[i];
    }
  }
  return true;
}

// Turns W into W J with orthogonal columns; returns J.
Block OrthogonaliseByJacobi(Block* w) {
  Block j(w->count, w->count);
  for (int64_t i = 0; i < w->count; ++i) j.column(i)[i] = 1;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool rotated = false;
    for (int64_t a = 0; a < w->count; ++a) {
      for (int64_t b = a + 1; b < w->count; ++b) rotated = Rotate(w, &j, a, b) || rotated;
    }
    if (!rotated) break;
  }
  return j;
}

// Adds to out [length] the columns of `basis`, each times its factor and `scale`.
void Combine(const Block& basis, const double* factors, double scale, double* out) {
  for (int64_t i = 0; i < basis.count; ++i) {
    AddTo(out, factors[i] * scale, basis.column(i), basis.length);
  }
}

}  // namespace

TruncatedSvd ComputeTruncatedSvd(std::span<const float> values, int64_t rows, int64_t cols,
                                 int64_t rank, ThreadPool& pool,
                                 const std::function<void()>& pause) {
  TANDEM_CHECK(rank >= 1 && rank <= std::min(rows, cols));
  const Matrix matrix(values, rows, cols, pool);
  const int64_t count = std::min({rows, cols, rank + std::max(kMoreColumns, rank / 8)});
  Block q = matrix.Times(RandomBlock(cols, count));
  Orthonormalise(&q, pool);
  for (int turn = 0; turn < kTurns; ++turn) {
    pause();
    Block back = matrix.TransposedTimes(q);
    Orthonormalise(&back, pool);
    pause();
    q = matrix.Times(back);
    Orthonormalise(&q, pool);
  }
  pause();
  Block q2 = matrix.TransposedTimes(q);
  Block w = Orthonormalise(&q2, pool);
  // M is near Q (Q2 R)ᵀ and R = W Jᵀ, so Q J has the left vectors and Q2 W the right ones.
  const Block j = OrthogonaliseByJacobi(&w);

  std::vector<double> sizes(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    sizes[static_cast<size_t>(i)] = std::sqrt(Dot(w.column(i), w.column(i), count));
  }
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });
  TruncatedSvd svd{rank, std::vector<double>(static_cast<size_t>(rank)),
                   std::vector<double>(static_cast<size_t>(rank * rows)),
                   std::vector<double>(static_cast<size_t>(rank * cols))};
  pool.ParallelFor(rank, [&](int64_t i, int) {
    const int64_t from = order[static_cast<size_t>(i)];
    const double size = sizes[static_cast<size_t>(from)];
    svd.values[static_cast<size_t>(i)] = size;
    if (size == 0) return;
    Combine(q, j.column(from), 1, svd.left.data() + i * rows);
    Combine(q2, w.column(from), 1 / size, svd.right.data() + i * cols);
  });
  return svd;
}

}  // namespace tandem::convert
