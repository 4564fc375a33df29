//! The instruction set of the fast paths: a token that can only be had by asking the machine.

/// Proof that the machine was asked. Holding the AVX2 kind means that AVX2, FMA and F16C are
/// there, which is what the `unsafe` calls into AVX2 bodies rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best that this machine can do.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Self(Kind::Avx2);
        }
        Self::portable()
    }

    /// Plain Rust, on any machine.
    #[must_use]
    pub fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// Everything that can be tested on this machine.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::portable()];
        if Self::detect() != Self::portable() {
            all.push(Self::detect());
        }
        all
    }

    /// Names for a report; empty for the portable path.
    #[must_use]
    pub fn features(self) -> &'static [&'static str] {
        match self.0 {
            Kind::Portable => &[],
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => &["avx2", "fma", "f16c"],
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn is_avx2(self) -> bool {
        self.0 == Kind::Avx2
    }
}
