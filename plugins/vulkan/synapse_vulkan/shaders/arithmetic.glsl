// Functions whose bits must not depend on a driver's library: built from +, *, fma and bit patterns alone.

// e^x within 1e-7 of its value; 0 below -87. Polynomial fitted by least squares over half a power of two.
float exponential(float x) {
    float bounded = clamp(x, -87.0, 88.0);
    float power = roundEven(bounded * 1.44269504);
    float rest = fma(power, -0.693359375, bounded);
    rest = fma(power, 2.12194440e-4, rest);
    float series = 1.375140790e-3;
    series = fma(series, rest, 8.368916341e-3);
    series = fma(series, rest, 4.166953311e-2);
    series = fma(series, rest, 1.666651846e-1);
    series = fma(series, rest, 4.999998860e-1);
    float value = 1.0 + fma(rest * rest, series, rest);
    float scaled = value * intBitsToFloat((int(power) + 127) << 23);
    return x < -87.0 ? 0.0 : scaled;
}

// The error function within 4e-7: a quotient of polynomials in the square, fitted on [0, 3.9], beyond which it is 1.
float error_function(float x) {
    float size = min(abs(x), 3.9);
    float t = size * size;
    float above = -1.338486410e-8;
    above = fma(above, t, 4.727192090e-6);
    above = fma(above, t, 3.808053775e-4);
    above = fma(above, t, 3.835836779e-3);
    above = fma(above, t, 5.429393062e-2);
    above = fma(above, t, 1.847539046e-1);
    above = fma(above, t, 1.128379178);
    float below = 6.351216157e-5;
    below = fma(below, t, 1.306351604e-3);
    below = fma(below, t, 1.543906991e-2);
    below = fma(below, t, 1.138050352e-1);
    below = fma(below, t, 4.970673880e-1);
    below = fma(below, t, 1.0);
    float value = min(size * above / below, 1.0);
    return x < 0.0 ? -value : value;
}

float hyperbolic_tangent(float x) {
    float falling = exponential(-2.0 * abs(x));
    float value = (1.0 - falling) / (1.0 + falling);
    return x < 0.0 ? -value : value;
}

const int ACT_NONE = 0;
const int ACT_GELU = 1;
const int ACT_GELU_TANH = 2;
const int ACT_SILU = 3;
const int ACT_TANH = 4;
const int ACT_RELU = 5;

// x through the activation `kind`; what is no number stays none.
float activated(float x, int kind) {
    float y = x;
    if (kind == ACT_GELU) {
        y = 0.5 * x * (1.0 + error_function(x * 0.70710678));
    } else if (kind == ACT_GELU_TANH) {
        y = 0.5 * x * (1.0 + hyperbolic_tangent(0.79788456 * fma(0.044715 * x * x, x, x)));
    } else if (kind == ACT_SILU) {
        y = x / (1.0 + exponential(-x));
    } else if (kind == ACT_TANH) {
        y = hyperbolic_tangent(x);
    } else if (kind == ACT_RELU) {
        y = max(x, 0.0);
    }
    return isnan(x) ? x : y;
}
