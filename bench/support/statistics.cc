#include "bench/support/statistics.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace rdmalloc::bench {

std::vector<double> present(std::span<const double> values) {
  std::vector<double> kept;
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept),
               [](double value) { return !std::isnan(value); });
  return kept;
}

double median(std::span<const double> values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[middle];
  return (sorted[middle - 1] + sorted[middle]) / 2;
}

Summary summarize(std::span<const double> values) {
  Summary summary;
  if (values.empty()) return summary;
  summary.count = values.size();
  summary.median = median(values);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  summary.minimum = *low;
  summary.maximum = *high;
  std::vector<double> distances;
  distances.reserve(values.size());
  for (double value : values) distances.push_back(std::abs(value - summary.median));
  summary.mad = median(distances);
  return summary;
}

double geometric_mean(std::span<const double> values) {
  double sum = 0;
  std::size_t count = 0;
  for (double value : values) {
    if (!(value > 0)) continue;
    sum += std::log(value);
    ++count;
  }
  return count == 0 ? 0 : std::exp(sum / static_cast<double>(count));
}

double paired_ratio(std::span<const double> values, std::span<const double> bases) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(values.size(), bases.size()); ++i)
    if (bases[i] > 0 && values[i] > 0)  // neither 0 nor NaN
      ratios.push_back(values[i] / bases[i]);
  return median(ratios);
}

double half_range_percent(const Summary& summary) {
  if (!(summary.median > 0)) return 0;
  return 50 * (summary.maximum - summary.minimum) / summary.median;
}

}  // namespace rdmalloc::bench
