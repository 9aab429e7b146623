// Medians and their spread. Few repetitions, long tails and a shared machine: means say little
// here, so nothing in bench/ reports one of repeated measurements.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace rdmalloc::bench {

struct Summary {
  std::size_t count = 0;
  double median = 0;
  double minimum = 0;
  double maximum = 0;
  double mad = 0;  // median absolute deviation from the median, not scaled to sigma
};

// The values that are there: a repetition that gave nothing is NaN.
std::vector<double> present(std::span<const double> values);

// All zero for no values.
Summary summarize(std::span<const double> values);
double median(std::span<const double> values);  // 0 for no values
// Geometric mean; values that are not positive have none and are left out. 0 for no values.
double geometric_mean(std::span<const double> values);

// Median of value[i] / base[i] over the repetitions both have. Numbers of one repetition were
// measured within seconds of each other, so a slow drift of the machine cancels. 0 and NaN mean
// "not measured" and are left out with their partner; 0 for no pair at all.
double paired_ratio(std::span<const double> values, std::span<const double> bases);

// Half the range in percent of the median: the "±" of the tables.
double half_range_percent(const Summary& summary);

}  // namespace rdmalloc::bench
